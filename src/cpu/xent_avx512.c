/* cpu/xent_avx512.c – cpu/xent_body.h compiled for AVX-512; the Makefile gives this file its flags.
 */
#include "cpu/xent_body.h"
