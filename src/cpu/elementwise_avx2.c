/* cpu/elementwise_avx2.c – cpu/elementwise_body.h compiled for AVX2; the Makefile gives this file
 * its flags. */
#include "cpu/elementwise_body.h"
