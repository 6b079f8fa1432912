#include "charlm/corpus.h"

#include <fstream>
#include <iterator>

namespace charlm {

bool Corpus::Load(const std::string& path, std::string* error) {
  std::ifstream file(path, std::ios::binary);
  text_.assign(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  if (!file.good() && !file.eof()) {
    *error = "cannot read the text " + path + "; choose another with --text";
    return false;
  }
  if (text_.size() <= kContext) {
    *error = "the text " + path + " is missing or shorter than " + std::to_string(kContext + 1) +
             " characters; choose another with --text";
    return false;
  }
  for (uint8_t& character : text_) {
    if (character >= kVocabulary) character = '?';
  }
  return true;
}

std::vector<Example> Corpus::Sample(uint64_t count, Random& random) const {
  std::vector<Example> examples(count);
  for (Example& example : examples) {
    uint64_t place = random.Below(text_.size() - kContext);
    example = {&text_[place], text_[place + kContext]};
  }
  return examples;
}

}  // namespace charlm
