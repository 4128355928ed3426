# tidy.awk – the rules of tools/tidy.sh. Plain awk in the C locale: columns are counted here,
# because awk counts bytes.
#
# Set by the caller: allow (file of exceptions). Reads every file once; prints `path:line: rule:
# message`, warnings as `path:line: warning: …`; exit 1 when there was an error. A rule that is
# broken for a reason has a line in tools/tidy.allow.

BEGIN {
    # Which room may include which; itself, base and tessera.h always.
    room["base"] = ""
    room["ir"] = "base"
    room["grad"] = "ir base"
    room["mesh"] = "ir base"
    room["nn"] = "ir base"
    room["models"] = "nn ir base"
    room["exec"] = "mesh ir base" # how a global graph lies on a mesh
    room["comm"] = "base"
    room["cpu"] = "exec ir comm base"
    room["xla"] = "exec mesh ir base"
    room["token"] = "base"
    room["data"] = "token base" # a reader turns text into ids
    room["ckpt"] = "base models/model.h" # the names and shapes that a checkpoint of a model has
    room["train"] = "base ir grad mesh nn models exec comm cpu xla data token ckpt"
    room["watch"] = "train base"
    room["cli"] = "train"

    banned = "strcpy strcat sprintf vsprintf gets atoi atol atoll atof strtok alloca assert"
    heap = "malloc calloc realloc free strdup strndup aligned_alloc posix_memalign"
    prints = "exit _exit abort printf vprintf puts putchar perror"
    files = "fopen fdopen open creat rename unlink mkdir rmdir opendir fsync ftruncate"
    n_banned = split(banned, banned_list, " ")
    n_heap = split(heap, heap_list, " ")
    n_prints = split(prints, prints_list, " ")
    n_files = split(files, files_list, " ")

    # Words spelled in pieces, so that this file passes its own rules.
    unfinished = "(^|[^A-Za-z])(TO" "DO|FIX" "ME|HA" "CK|X" "XX)([^A-Za-z]|$)"
    machine = "(^|[^A-Za-z0-9_.])/(wor" "k|hom" "e/[a-z]|roo" "t)/"
    fast_math = "-f(fast-ma" "th|unsafe-math)|-O(fa" "st)"

    while ((getline line < allow) > 0) {
        at++
        if (line ~ /^ *(#|$)/) continue
        n = split(line, word, " ")
        if (n < 5) { report(allow, at, "allow", "needs a rule, a path, a word and a reason: " line); continue }
        exceptions++
        allow_rule[exceptions] = word[1]; allow_path[exceptions] = word[2]; allow_word[exceptions] = word[3]
        allow_line[exceptions] = at
    }
    close(allow)
}

function report(path, line, rule, message,    i) {
    for (i = 1; i <= exceptions; i++)
        if (allow_rule[i] == rule && allow_path[i] == path &&
            (allow_word[i] == "*" || index(message, allow_word[i]))) {
            used[i] = 1
            return
        }
    printf "%s:%d: %s: %s\n", path, line, rule, message
    errors++
}

function warn(path, line, message) {
    printf "%s:%d: warning: %s\n", path, line, message
    warnings++
}

# The line without comments, strings and character constants; in_comment carries over lines.
function strip(s,    out, q, p, c) {
    out = ""
    while (s != "") {
        if (in_comment) {
            p = index(s, "*/")
            if (!p) return out
            s = substr(s, p + 2)
            in_comment = 0
            continue
        }
        if (!match(s, /["'\/]/)) return out s
        out = out substr(s, 1, RSTART - 1)
        c = substr(s, RSTART, 1)
        s = substr(s, RSTART + 1)
        if (c == "/") {
            if (substr(s, 1, 1) == "/") return out
            if (substr(s, 1, 1) == "*") { in_comment = 1; s = substr(s, 2) }
            else out = out c
            continue
        }
        out = out c c
        while (s != "") { # to the closing quote
            if (!match(s, /[\\"']/)) { s = ""; break }
            q = substr(s, RSTART, 1)
            s = substr(s, RSTART + (q == "\\" ? 2 : 1))
            if (q == c) break
        }
    }
    return out
}

function calls(code, name) {
    return code ~ ("(^|[^A-Za-z0-9_.>])" name " *\\(")
}

function begin_file(    parts, n) {
    end_file()
    path = FILENAME
    sub(/^\.\//, "", path)
    n = split(path, parts, "/")
    is_c = path ~ /\.(c|h|def|cc)$/
    in_src = path ~ /^src\//
    here = in_src && n > 2 ? parts[2] : ""
    is_library = in_src && here != "cli" && here != "watch"
    is_code = is_c || path ~ /\.(sh|awk|py)$/ || path ~ /^(Makefile|demo|check|\.ci\/run)$/
    is_text = path ~ /\.md$/
    base_name = parts[n]
    in_comment = 0
    function_line = 0
    signature = ""
    row = ""
    banner_lines = 0
    in_banner = 0
    wide = 0
    first_wide = 0
    file_count++
    if (in_src && n > 2 && !(here in room)) report(path, 1, "room", "src/" here " is no room of the house")
    if (in_src && is_c) {
        if ($0 !~ /^\/\*/) report(path, 1, "banner", "begins without a comment that says what the file is and is not")
        else {
            in_banner = 1
            if (!index($0, base_name)) warn(path, 1, "the banner does not name the file")
        }
    }
}

function end_file() {
    if (path == "") return
    if (is_c && last > 1500) report(path, last, "file", last " lines; 1,500 at most")
    else if (is_c && last > 600) warn(path, last, last " lines; 600 is the aim")
    if (path == "include/tessera.h" && last > 800)
        report(path, last, "file", last " lines; the public header has 800 at most")
    if (in_src && path ~ /\.c$/ && last > 100 && banner_lines < 3)
        warn(path, 1, "a banner of " banner_lines " lines; 5 to 15 is the aim")
    if (wide) warn(path, first_wide, wide " lines of more than 100 columns, this the first")
    if (row != "") report(path, last, "ops", "a row is not closed")
    path = ""
}

FNR == 1 { begin_file() }
{ last = FNR }

# ---- every file --------------------------------------------------------------------------------

/[ \t]$/ && !(is_text && /[^ ]  $/) { report(path, FNR, "space", "ends in white space") }
/\t/ && path !~ /(^|\/)(Makefile|.*\.mk)$/ { report(path, FNR, "tab", "has a tab") }
/\r$/ { report(path, FNR, "space", "ends in a carriage return") }
$0 ~ machine { report(path, FNR, "path", "names a folder of one machine") }
is_code && $0 ~ unfinished { report(path, FNR, "unfinished", "marks unfinished work") }
!is_text && $0 ~ fast_math {
    report(path, FNR, "fastmath", "asks for unsafe floating point, which breaks the guards against NaN")
}
is_code && !/\t/ {
    columns = $0
    gsub(/[\200-\277]/, "", columns) # continuation bytes of UTF-8
    most = is_c ? 120 : 160 # a command line of a script is harder to break than C
    if (length(columns) > most) report(path, FNR, "columns", length(columns) " columns; " most " at most, 100 is the aim")
    else if (is_c && length(columns) > 100) { wide++; if (!first_wide) first_wide = FNR }
}

# ---- C -----------------------------------------------------------------------------------------

!is_c { next }

in_banner {
    banner_lines++
    if (/\*\//) {
        in_banner = 0
    }
}

# An include is read from the raw line: its path is a string.
/^ *# *include/ && in_src {
    if (match($0, /"[^"]*"/)) {
        target = substr($0, RSTART + 1, RLENGTH - 2)
        split(target, part, "/")
        if (index(target, "/") && part[1] in room && part[1] != here) {
            if (!index(" " room[here] " ", " " part[1] " ") && !index(" " room[here] " ", " " target " "))
                report(path, FNR, "arrow", here " may not include " target "; it may include: " room[here])
            else if (target ~ /internal\.h$/)
                report(path, FNR, "arrow", target " is private to " part[1])
        }
    } else if (here != "base" && /<(assert|alloca)\.h>/)
        report(path, FNR, "banned", "TS_ASSERT and the arena take the place of this header")
}
/^ *# *include *"/ && path == "include/tessera.h" {
    report(path, FNR, "arrow", "the public header includes standard headers only")
}

{
    code = strip($0)
    if (in_src) {
        for (i = 1; i <= n_banned; i++)
            if (calls(code, banned_list[i])) report(path, FNR, "banned", banned_list[i] "()")
        # The program sees tessera.h alone, which has no allocator; what it allocates is small and its own.
        if (path != "src/base/alloc.c" && here != "cli")
            for (i = 1; i <= n_heap; i++)
                if (calls(code, heap_list[i]))
                    report(path, FNR, "heap", heap_list[i] "(); memory comes from ts_alloc or an arena")
        if (here != "base" && here != "cli")
            for (i = 1; i <= n_files; i++)
                if (calls(code, files_list[i]))
                    report(path, FNR, "files", files_list[i] "(); files go through base/file.h")
    }
    if (is_library) {
        for (i = 1; i <= n_prints; i++)
            if (calls(code, prints_list[i]))
                report(path, FNR, "prints", prints_list[i] "(); the library returns errors and logs")
        if (code ~ /(^|[^a-z_])v?fprintf *\( *std(err|out)/)
            report(path, FNR, "prints", "fprintf to a standard stream; the library returns errors")
    }
}

# Functions: from a brace in the first column to the closing one.
function_line == 0 && (/^\{/ || /^[A-Za-z_].*\) *\{ *$/) && !/^(struct|union|enum|typedef)/ {
    if (!/^\{/) signature = signature " " code
    name = signature
    sub(/\(.*/, "", name)
    sub(/ *$/, "", name)
    sub(/.*[^A-Za-z0-9_]/, "", name)
    if (name != "" && signature ~ /\(/) {
        function_line = FNR
        if (is_library && path ~ /\.c$/ && signature !~ /(^|[^a-z_])static([^a-z_]|$)/ && name !~ /^ts_/)
            report(path, FNR, "name", name "() is visible everywhere; name it ts__… or make it static")
    }
}
function_line && /^\}/ {
    length_lines = FNR - function_line + 1
    message = name "() has " length_lines " lines; 70 is the aim, 110 the most"
    if (length_lines > 110) report(path, function_line, "function", message)
    else if (length_lines > 70) warn(path, function_line, message)
    function_line = 0
    signature = ""
}
# What stands between the last statement at file level and the brace is the signature.
function_line == 0 {
    if (code ~ /[;}] *$/ || code ~ /^ *#/ || code ~ /^ *$/) signature = ""
    else signature = signature " " code
}

# Rows of the op table: OP(name, arity, kind, "what it computes").
path ~ /ir\/ops\.def$/ {
    if (row == "" && $0 ~ /^OP *\(/) { row = $0; row_line = FNR }
    else if (row != "") row = row $0
    if (row != "" && row ~ /"\) *(\/\*.*)?$/) {
        if (!match(row, /"[^"]*"\)/) || RLENGTH < 5)
            report(path, row_line, "ops", "a row without its line of documentation")
        row = ""
    } else if (row != "" && row ~ /\) *$/) {
        report(path, row_line, "ops", "a row without its line of documentation")
        row = ""
    }
}

END {
    end_file()
    for (i = 1; i <= exceptions; i++)
        if (!used[i] && !partial) {
            printf "%s:%d: allow: nothing needs this exception any more\n", allow, allow_line[i]
            errors++
        }
    printf "tidy: %d files, %d errors, %d warnings\n", file_count, errors, warnings
    exit errors > 0
}
