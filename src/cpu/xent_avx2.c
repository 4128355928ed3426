/* cpu/xent_avx2.c – cpu/xent_body.h compiled for AVX2; the Makefile gives this file its flags. */
#include "cpu/xent_body.h"
