#include "cli/core/command.h"
#include "cli/core/text.h"

namespace holdfast::cli {

namespace {

/// Returns the options of `app`, for bash's compgen.
std::string WordsOf(const CLI::App& app) {
  std::vector<std::string> words;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) words.push_back("--" + name);
    for (const std::string& name : option->get_snames()) words.push_back("-" + name);
  }
  return Join(words, " ");
}

/// Returns `text` for a zsh specification in single quotes: without what ends the quotes, the
/// description or the message.
std::string ZshText(const std::string& text) {
  std::string out;
  for (const char c : text.substr(0, text.find('\n'))) {
    if (c == '\'') {
      out += "'\\''";
    } else if (c == '[' || c == ']' || c == ':' || c == '\\') {
      out += std::string("\\") + c;
    } else {
      out += c;
    }
  }
  return out;
}

/// Returns one argument of zsh's _arguments per name of the option.
std::string ZshOption(const CLI::Option& option) {
  std::vector<std::string> names;
  for (const std::string& name : option.get_snames()) names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) names.push_back("--" + name);
  const std::string rest = "[" + ZshText(option.get_description()) + "]" +
                           (option.get_type_size() == 0 ? "" : ":value:_files") + "'";
  std::string out;
  for (const std::string& name : names) {
    out += " \\\n        '(" + Join(names, " ") + ")" + name + rest;
  }
  return out;
}

std::string ZshOptions(const CLI::App& app) {
  std::string out;
  for (const CLI::Option* option : app.get_options()) {
    if (!option->get_positional()) out += ZshOption(*option);
  }
  return out;
}

}  // namespace

std::string ZshCompletion(const CLI::App& app) {
  std::string commands;
  std::string cases;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    commands += "    '" + command->get_name() + ":" + ZshText(command->get_description()) + "'\n";
    cases += "      " + command->get_name() + ") _arguments" + ZshOptions(*command) +
             " \\\n        '*:argument:_files' ;;\n";
  }
  return "#compdef holdfast\n"
         "# zsh completion of holdfast: put it into a folder of $fpath as _holdfast\n"
         "_holdfast() {\n"
         "  local curcontext=\"$curcontext\" state line\n"
         "  local -a commands\n"
         "  commands=(\n" +
         commands +
         "  )\n"
         "  _arguments -C" +
         ZshOptions(app) +
         " \\\n        '1: :->command' '*:: :->argument'\n"
         "  case $state in\n"
         "    command) _describe command commands ;;\n"
         "    argument) case $line[1] in\n" +
         cases +
         "    esac ;;\n"
         "  esac\n"
         "}\n"
         // An autoloaded file is the function's body at the first Tab; a sourced file is not.
         "if [ \"$funcstack[1]\" = _holdfast ]; then _holdfast \"$@\"; else compdef _holdfast "
         "holdfast; fi\n";
}

std::string BashCompletion(const CLI::App& app) {
  std::vector<std::string> names;
  std::string cases;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    names.push_back(command->get_name());
    cases += "    " + command->get_name() + ") words=\"" + WordsOf(*command) + "\" ;;\n";
  }
  return "# bash completion of holdfast: source it, or put it into "
         "/etc/bash_completion.d/holdfast\n"
         "_holdfast() {\n"
         "  local current=\"${COMP_WORDS[COMP_CWORD]}\" command=\"\" words=\"\" word\n"
         "  for word in \"${COMP_WORDS[@]:1:COMP_CWORD-1}\"; do\n"
         "    case \" " +
         Join(names, " ") +
         " \" in *\" $word \"*) command=\"$word\"; break ;; esac\n"
         "  done\n"
         "  case \"$command\" in\n" +
         cases + "    *) words=\"" + Join(names, " ") +
         "\" ;;\n"
         "  esac\n"
         "  case \"$current\" in\n"
         "    -*) COMPREPLY=($(compgen -W \"$words " +
         WordsOf(app) +
         "\" -- \"$current\")) ;;\n"
         "    *) if [ -z \"$command\" ]; then COMPREPLY=($(compgen -W \"$words\" -- "
         "\"$current\"))\n"
         "       else COMPREPLY=($(compgen -f -- \"$current\")); fi ;;\n"
         "  esac\n"
         "}\n"
         "complete -F _holdfast holdfast\n";
}

}  // namespace holdfast::cli
