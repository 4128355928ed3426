/* cpu/rows_avx2.c – cpu/rows_body.h compiled for AVX2; the Makefile gives this file its flags. */
#include "cpu/rows_body.h"
