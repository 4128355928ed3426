/* cpu/update_avx512.c – cpu/update_body.h compiled for AVX-512; the Makefile gives this file its
 * flags. */
#include "cpu/update_body.h"
