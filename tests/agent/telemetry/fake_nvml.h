#pragma once

#include <filesystem>
#include <fstream>
#include <string>

namespace holdfast {

/// A copy of the fake library with its own script; fake_nvml.cc describes the format.
class FakeNvml {
 public:
  FakeNvml(const std::string& library, const std::string& folder, const std::string& script = "")
      : path_(folder + "/libnvml-fake.so") {
    std::filesystem::create_directories(folder);
    std::filesystem::copy_file(library, path_);
    Add(script);
  }
  const std::string& path() const { return path_; }
  void Add(const std::string& lines) { std::ofstream(path_ + ".script", std::ios::app) << lines; }

 private:
  std::string path_;
};

}  // namespace holdfast
