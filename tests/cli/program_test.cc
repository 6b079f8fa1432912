// The program that `holdfast run` launches.

#include "cli/core/program.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace holdfast::cli {
namespace {
namespace fs = std::filesystem;

class ProgramTest : public ::testing::Test {
 protected:
  ProgramTest() : dir_(::mkdtemp(std::string(::testing::TempDir() + "programXXXXXX").data())) {}
  ~ProgramTest() override { fs::remove_all(dir_); }

  std::string Make(const std::string& name, bool executable = true) {
    const fs::path path = fs::path(dir_) / name;
    fs::create_directories(path.parent_path());
    std::ofstream(path) << "#!/bin/sh\n";
    if (executable) fs::permissions(path, fs::perms::owner_all);
    return path.string();
  }
  std::string Folder(const std::string& name) const { return dir_ + "/" + name; }

  const std::string dir_;
};

TEST_F(ProgramTest, FindsTheFirstInThePath) {
  Make("a/python", /*executable=*/false);
  const std::string in_b = Make("b/python");
  Make("c/python");
  fs::create_directories(Folder("d/python"));
  const std::string path = Folder("none") + ":" + Folder("d") + ":" + Folder("a") + ":" +
                           Folder("b") + ":" + Folder("c");
  EXPECT_EQ(FindProgram("python", path, "/"), in_b);
}

TEST_F(ProgramTest, KeepsTheLinkOfAVirtualEnvironment) {
  Make("usr/python3");
  fs::create_directories(Folder("venv/bin"));
  fs::create_symlink(Folder("usr/python3"), Folder("venv/bin/python"));
  EXPECT_EQ(FindProgram("python", Folder("venv/bin"), "/"), Folder("venv/bin/python"));
}

TEST_F(ProgramTest, RelativeFoldersCountFromTheDirectory) {
  const std::string here = Make("train");
  const std::string below = Make("bin/tool");
  EXPECT_EQ(FindProgram("train", ":/nowhere", dir_), here);
  EXPECT_EQ(FindProgram("tool", "/nowhere:bin", dir_), below);
}

TEST_F(ProgramTest, AProgramWithASlashOrNotFoundIsUnchanged) {
  Make("train");
  EXPECT_EQ(FindProgram("./train", dir_, "/"), "./train");
  EXPECT_EQ(FindProgram("/bin/train", dir_, "/"), "/bin/train");
  EXPECT_EQ(FindProgram("trainer", dir_, "/"), "trainer");
  EXPECT_EQ(FindProgram("train", "", "/"), "train");
  EXPECT_EQ(FindProgram("", dir_, "/"), "");
}

}  // namespace
}  // namespace holdfast::cli
