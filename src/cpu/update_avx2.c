/* cpu/update_avx2.c – cpu/update_body.h compiled for AVX2; the Makefile gives this file its flags.
 */
#include "cpu/update_body.h"
