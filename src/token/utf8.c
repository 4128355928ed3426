/* token/utf8.c – where UTF-8 text is valid and where a character is cut.
 *
 * The ranges are those of RFC 3629, section 4: no overlong forms, no surrogates, nothing above
 * U+10FFFF. Not here: categories and normalisation (utf8proc has them).
 */
#include "token/tokenizer.h"

/* Bytes of the character at s (1 … 4) when its n available bytes hold it whole; 0 when it is
 * invalid; −1 when it is valid so far but cut. n ≥ 1. */
static int character(const unsigned char *s, size_t n)
{
    if (s[0] < 0x80) return 1;
    if (s[0] < 0xc2 || s[0] > 0xf4) return 0;
    int length = s[0] < 0xe0 ? 2 : s[0] < 0xf0 ? 3 : 4;
    unsigned low = s[0] == 0xe0 ? 0xa0 : s[0] == 0xf0 ? 0x90 : 0x80;
    unsigned high = s[0] == 0xed ? 0x9f : s[0] == 0xf4 ? 0x8f : 0xbf;
    for (int i = 1; i < length; i++) {
        if ((size_t)i >= n) return -1;
        if (s[i] < low || s[i] > high) return 0;
        low = 0x80;
        high = 0xbf;
    }
    return length;
}

size_t ts_utf8_valid_prefix(const char *text, size_t n)
{
    const unsigned char *s = (const unsigned char *)text;
    size_t i = 0;
    while (i < n) {
        int length = character(s + i, n - i);
        if (length <= 0) break;
        i += (size_t)length;
    }
    return i;
}

size_t ts_utf8_complete(const char *text, size_t n)
{
    const unsigned char *s = (const unsigned char *)text;
    for (size_t back = 1; back <= 3 && back <= n; back++) {
        if ((s[n - back] & 0xc0) == 0x80) continue;
        return character(s + n - back, back) < 0 ? n - back : n;
    }
    return n;
}
