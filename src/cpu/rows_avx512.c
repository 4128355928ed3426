/* cpu/rows_avx512.c – cpu/rows_body.h compiled for AVX-512; the Makefile gives this file its flags.
 */
#include "cpu/rows_body.h"
