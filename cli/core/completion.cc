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

}  // namespace

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
