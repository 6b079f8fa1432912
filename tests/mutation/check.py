#!/usr/bin/env python3
"""Checks the list of planted bugs against the tree. Prints a line for each that does not fit; then exits with 1."""

import sys

import mutants


def main():
    mutations = mutants.load()
    wrong = mutants.problems(mutations)
    for line in wrong:
        print(line)
    languages = {}
    for one in mutations:
        ending = one.file.rsplit(".", 1)[-1]
        languages[ending] = languages.get(ending, 0) + 1
    print(f"{len(mutations)} planted bugs ({', '.join(f'{n} .{e}' for e, n in sorted(languages.items()))}), "
          f"{len(wrong)} of them do not fit the tree")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
