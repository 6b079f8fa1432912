#!/bin/sh
# Checks a source without making code of it: syntax_only.sh COMPILER ARGUMENT... -o OBJECT ...
# The object is an empty file, for those who look at its date.
set -eu
"$@" -fsyntax-only
while [ "$1" != -o ]; do shift; done
: >"$2"
