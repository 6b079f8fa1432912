#!/usr/bin/env zsh
# Prints what zsh offers after a line is typed and Tab is pressed.
#   zsh_completion.zsh FOLDER-OF-_holdfast "holdfast rest"
zmodload zsh/zpty
zpty shell zsh -f -i
zpty -w shell "PS1=; fpath=($1 \$fpath); autoload -Uz compinit; compinit -u -D; zstyle ':completion:*' list-prompt ''"
zpty -w shell "bindkey '^I' complete-word; LISTMAX=1000; stty cols 200; print READY"
zpty -r shell output '*READY*READY*'
zpty -w -n shell "$2"$'\t'
sleep 1
while zpty -r -t shell output; do print -r -- "$output"; done
zpty -d shell
