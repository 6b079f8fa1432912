#!/bin/sh
# Checks a source without generating code: syntax_only.sh COMPILER ARGUMENT... -o OBJECT ...
# The object is an empty file, which lets the build system track its date.
set -eu
"$@" -fsyntax-only
while [ "$1" != -o ]; do shift; done
: >"$2"
