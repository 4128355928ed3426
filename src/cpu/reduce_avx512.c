/* cpu/reduce_avx512.c – cpu/reduce_body.h compiled for AVX-512; the Makefile gives this file its
 * flags. */
#include "cpu/reduce_body.h"
