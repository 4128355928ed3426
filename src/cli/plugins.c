/* cli/plugins.c – tessera plugins: which PJRT plugins are here, and one from the package index.
 *
 * The list shows every plugin that is found, usable or not, and ends with 0 either way: it is what one looks at when
 * something is wrong. An install answers Ctrl-C, SIGTERM and SIGHUP by leaving nothing behind.
 * Not here: the search, the trial in a child and the install itself (xla/).
 */
#include "cli/cli.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char help[] =
    "usage: tessera plugins list [--json]\n"
    "       tessera plugins install cpu|tpu|cuda [--accept-license] [--folder DIR] [--again] [--quiet]\n\n"
    "A plugin is a library that runs the graph through XLA (engine=xla plugin=NAME).\n\n"
    "  list               every plugin that is found, tried in a process of its own\n"
    "  install cpu        XLA for this CPU: a download of 63 MB, 202 MB on disk\n"
    "  install tpu        Google's libtpu: 137 MB, 467 MB; needs --accept-license\n"
    "  install cuda       XLA for NVIDIA GPUs: 135 MB, 396 MB; CUDA's libraries come from elsewhere\n\n"
    "  --json             {\"plugins\": [{\"name\", \"usable\", \"problem\", \"path\", \"package\", \"version\",\n"
    "                     \"api\", \"stablehlo\", \"platform\", \"platform_version\", \"devices\", \"device_kind\"}]}\n"
    "  --accept-license   the terms of a plugin that is not open source were read and accepted\n"
    "  --folder DIR       installs into DIR/NAME; without it the first folder of TESSERA_PLUGIN_PATH,\n"
    "                     else ~/.local/share/tessera/plugins\n"
    "  --again            downloads even where the same version is there\n"
    "  --quiet            only what goes wrong\n\n"
    "Plugins are looked for in the folders of TESSERA_PLUGIN_PATH, in ~/.local/share/tessera/plugins,\n"
    "and among the Python packages of $VIRTUAL_ENV. Downloads are pip's (python3 -m pip).\n\n"
    "example:\n"
    "  tessera plugins install cpu\n"
    "  tessera plugins list\n"
    "  tessera train base.yml engine=xla plugin=cpu …\n\n"
    "exit codes: 0 done, 2 usage or a licence that was not accepted, 3 an unusable download, 4 no\n"
    "download (no network, no pip), 130 Ctrl-C, 143 SIGTERM\n";

const cli_command cli_plugins_command = {"plugins", "lists and installs PJRT plugins (XLA)", help,
                                         cli_plugins};

/* ---- list ------------------------------------------------------------------------------------ */

static void json_text(const char *name, const char *value)
{
    if (*value)
        cli_json_member(name, value);
    else
        printf("\"%s\": null", name);
}

static void api_version(const ts_plugin_info *p, char *text, size_t n)
{
    text[0] = '\0';
    if (p->api_major || p->api_minor) snprintf(text, n, "%d.%d", p->api_major, p->api_minor);
}

static void print_json(const ts_plugin_info *list, size_t n)
{
    printf("{\"plugins\": [");
    for (size_t i = 0; i < n; i++) {
        const ts_plugin_info *p = &list[i];
        char api[32];
        api_version(p, api, sizeof api);
        const char *const member[][2] = {{"name", p->name},
                                         {"problem", p->problem},
                                         {"path", p->path},
                                         {"package", p->package},
                                         {"version", p->version},
                                         {"api", api},
                                         {"stablehlo", p->stablehlo},
                                         {"platform", p->platform},
                                         {"platform_version", p->platform_version},
                                         {"device_kind", p->device_kind}};
        printf(i ? ",\n{" : "\n{");
        for (size_t k = 0; k < sizeof member / sizeof *member; k++) {
            json_text(member[k][0], member[k][1]);
            printf(", ");
        }
        printf("\"usable\": %s, \"devices\": %d}", p->status == TS_OK ? "true" : "false",
               p->devices);
    }
    printf("\n]}\n");
}

static const char *or_dash(const char *text)
{
    return *text ? text : "–";
}

/* A cell of width columns; what is longer pushes the rest of the row. */
static void cell(const char *text, int width)
{
    int columns = 0;
    for (const char *c = text; *c; c++) columns += ((unsigned char)*c & 0xc0) != 0x80;
    printf("%s%*s", text, columns < width ? width - columns + 1 : 1, "");
}

/* A path below HOME as the shell writes it. */
static void print_path(const char *path)
{
    const char *home = getenv("HOME");
    size_t n = home ? strlen(home) : 0;
    if (n > 1 && strncmp(path, home, n) == 0 && path[n] == '/')
        printf("~%s\n", path + n);
    else
        printf("%s\n", path);
}

/* The lines of a text, indented, broken at spaces where they are longer than a terminal is wide. */
static void print_problem(const char *text)
{
    enum { WIDTH = 96 };
    while (*text) {
        size_t line = strcspn(text, "\n"), n = line;
        if (n > WIDTH) {
            for (n = WIDTH; n > 0 && text[n] != ' ';) n--;
            if (n == 0) n = strcspn(text, " \n"); /* one long word, a path */
        }
        printf("    %.*s\n", (int)n, text);
        text += n;
        text += *text == ' ' || *text == '\n';
    }
}

/* The row has said which plugin. */
static const char *without_path(const ts_plugin_info *p)
{
    char begin[sizeof p->path + 16];
    int n = snprintf(begin, sizeof begin, "the plugin %s: ", p->path);
    return strncmp(p->problem, begin, (size_t)n) == 0 ? p->problem + n : p->problem;
}

static void print_row(const ts_plugin_info *p)
{
    char text[120];
    cell(or_dash(p->name), 6);
    cell(or_dash(p->version), 9);
    api_version(p, text, sizeof text);
    cell(or_dash(text), 6);
    cell(or_dash(p->stablehlo), 9);
    if (p->status == TS_OK)
        snprintf(text, sizeof text, "%d x %s", p->devices, or_dash(p->device_kind));
    else
        snprintf(text, sizeof text, "not usable");
    cell(or_dash(p->platform), 8);
    cell(text, 12);
    print_path(p->path);
    if (p->status != TS_OK) print_problem(without_path(p));
}

static void print_table(const ts_plugin_info *list, size_t n)
{
    if (n == 0) {
        printf(
            "No plugin was found. `tessera plugins install cpu` brings XLA for this CPU (63 MB);\n"
            "tpu and cuda likewise. `tessera plugins --help` tells where plugins are looked for.\n");
        return;
    }
    static const struct {
        const char *title;
        int width;
    } column[] = {{"name", 6},      {"version", 9},  {"API", 6},
                  {"StableHLO", 9}, {"platform", 8}, {"devices", 12}};
    for (size_t i = 0; i < sizeof column / sizeof *column; i++)
        cell(column[i].title, column[i].width);
    printf("library\n");
    for (size_t i = 0; i < n; i++) print_row(&list[i]);
}

static int list_plugins(bool json)
{
    ts_plugin_info *list;
    size_t n;
    ts_error err = {0};
    if (ts_plugins_list(&list, &n, &err) != TS_OK) return cli_fail("plugins list", &err);
    if (json)
        print_json(list, n);
    else
        print_table(list, n);
    ts_plugins_free(list);
    return 0;
}

/* ---- install --------------------------------------------------------------------------------- */

static bool stop(void *context)
{
    (void)context;
    return cli_stopped_by() != 0;
}

static void print_line(void *context, const char *text)
{
    if (*(const bool *)context) return;
    puts(text);
    (void)cli_flush();
}

/* Whether plugin=NAME looks into folder. */
static bool is_searched(const char *folder)
{
    const char *list = getenv("TESSERA_PLUGIN_PATH");
    size_t n = strlen(folder);
    for (; list && *list; list += strcspn(list, ":"), list += *list == ':')
        if (strcspn(list, ":") == n && strncmp(list, folder, n) == 0) return true;
    return false;
}

static void print_result(const ts_plugin_install_options *o, const ts_plugin_info *p)
{
    if (p->status == TS_OK)
        printf("PJRT API %d.%d, StableHLO %s, %s: %d x %s. Use it with engine=xla plugin=%s\n",
               p->api_major, p->api_minor, or_dash(p->stablehlo), or_dash(p->platform), p->devices,
               or_dash(p->device_kind), o->name);
    else if (strcmp(o->name, "tpu") == 0)
        printf("`tessera compile` can use it, ahead of time. No program can run on it here: %s\n",
               without_path(p));
    else
        printf("No program can run on it here: %s\n", without_path(p));
    if (o->folder && !is_searched(o->folder))
        printf("plugin=%s is looked for in the folders of TESSERA_PLUGIN_PATH; add %s\n", o->name,
               o->folder);
}

static int install(ts_plugin_install_options *o, bool quiet)
{
    ts_plugin_info info;
    ts_error err = {0};
    o->line = print_line;
    o->stop = stop;
    o->context = &quiet;
    cli_stop_on_signals();
    ts_status status = ts_plugin_install(o, &info, &err);
    if (status != TS_OK) {
        int code = cli_fail("plugins install", &err);
        return status == TS_CANCELLED && cli_stopped_by() ? 128 + cli_stopped_by() : code;
    }
    if (cli_stopped_by()) return 128 + cli_stopped_by(); /* it is installed, and was not tried to the end */
    if (!quiet) print_result(o, &info);
    return 0;
}

/* ---- the command ----------------------------------------------------------------------------- */

static int unknown_action(const char *word)
{
    static const char *const actions[] = {"list", "install"};
    const char *near = ts_nearest(word, actions, 2);
    if (near)
        return cli_usage(&cli_plugins_command, "unknown action %s; did you mean %s?", word, near);
    return cli_usage(&cli_plugins_command, "unknown action %s; expected list or install", word);
}

static int run(const char *const *words, int n, ts_plugin_install_options *o, bool json, bool quiet)
{
    const cli_command *c = &cli_plugins_command;
    if (n == 0) return cli_usage(c, "expected list or install");
    if (strcmp(words[0], "list") == 0) {
        if (n > 1) return cli_usage(c, "list takes no word; found %s", words[1]);
        if (o->accept_license || o->again || o->folder)
            return cli_usage(c, "--accept-license, --again and --folder are for install");
        return list_plugins(json);
    }
    if (strcmp(words[0], "install") != 0) return unknown_action(words[0]);
    if (json) return cli_usage(c, "--json is for list");
    if (n == 1) return cli_usage(c, "install which one? expected cpu, tpu or cuda");
    if (n > 2) return cli_usage(c, "one plugin at a time; found %s and %s", words[1], words[2]);
    if (o->folder && !*o->folder)
        return cli_usage(c, "--folder is empty; leave it out for the usual folder");
    o->name = words[1];
    return install(o, quiet);
}

int cli_plugins(int argc, char **argv)
{
    ts_plugin_install_options o;
    bool json = false, quiet = false;
    ts_plugin_install_options_default(&o);
    const cli_option options[] = {{"--json", NULL, &json},
                                  {"--quiet", NULL, &quiet},
                                  {"--accept-license", NULL, &o.accept_license},
                                  {"--again", NULL, &o.again},
                                  {"--folder", &o.folder, NULL}};
    const char **words = calloc((size_t)argc + 1, sizeof *words);
    int n, code = 2;
    if (words && cli_options(&cli_plugins_command, argc, argv, options,
                             sizeof options / sizeof *options, words, &n))
        code = run(words, n, &o, json, quiet);
    free(words);
    return code;
}
