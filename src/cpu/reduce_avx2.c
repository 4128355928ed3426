/* cpu/reduce_avx2.c – cpu/reduce_body.h compiled for AVX2; the Makefile gives this file its flags.
 */
#include "cpu/reduce_body.h"
