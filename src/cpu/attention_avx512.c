/* cpu/attention_avx512.c – cpu/attention_body.h compiled for AVX-512; the Makefile gives this file
 * its flags. */
#include "cpu/attention_body.h"
