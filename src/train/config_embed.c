/* train/config_embed.c – configs/base.yml and the presets, inside the library, so that one program
 * file is enough. The assembler includes them as they are; the Makefile lists them in
 * $(BUILD)/configs.def, one EMBED(number, path) a file, and rebuilds this file when one changes. */
#include "train/config_internal.h"

#define EMBED(i, path)                                                                             \
    __asm__(".pushsection .rodata\n.hidden ts__embedded_" #i "\n.global ts__embedded_" #i "\n"     \
            "ts__embedded_" #i ":\n.incbin \"" path "\"\n.byte 0\n.popsection\n");                 \
    extern const char ts__embedded_##i[];
#include "configs.def"
#undef EMBED

static const struct {
    const char *name, *text;
} files[] = {
#define EMBED(i, path) {path, ts__embedded_##i},
#include "configs.def"
#undef EMBED
};

const char *ts__embedded_name(size_t i)
{
    return i < sizeof files / sizeof *files ? files[i].name : NULL;
}

const char *ts__embedded(const char *name)
{
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        if (!strcmp(files[i].name, name)) return files[i].text;
    return NULL;
}
