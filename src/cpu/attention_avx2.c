/* cpu/attention_avx2.c – cpu/attention_body.h compiled for AVX2; the Makefile gives this file its
 * flags. */
#include "cpu/attention_body.h"
