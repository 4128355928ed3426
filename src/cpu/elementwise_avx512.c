/* cpu/elementwise_avx512.c – cpu/elementwise_body.h compiled for AVX-512; the Makefile gives this
 * file its flags. */
#include "cpu/elementwise_body.h"
