#pragma once

#include <fcntl.h>
#include <gmock/gmock.h>
#include <grp.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "storage/format/checksum.h"
#include "storage/format/image.h"
#include "storage/volume/aligned_buffer.h"
#include "storage/volume/volume.h"

// Runs the real `holdfast` binary, and makes real data directories for it.

namespace holdfast::cli {

namespace fs = std::filesystem;

/// A folder on the real file system, removed with everything in it.
class TempFolder {
 public:
  TempFolder() {
    const char* base = ::getenv("TMPDIR");
    std::string path = std::string(base != nullptr ? base : "/tmp") + "/hf-cli-XXXXXX";
    EXPECT_NE(::mkdtemp(path.data()), nullptr);
    path_ = path;
  }
  ~TempFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

inline std::string ReadText(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}
inline void WriteText(const std::string& path, const std::string& bytes) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << bytes;
  ASSERT_TRUE(file.flush()) << path;
}
inline void FlipBit(const std::string& path, uint64_t offset) {
  std::string bytes = ReadText(path);
  ASSERT_LT(offset, bytes.size()) << path;
  bytes[offset] = static_cast<char>(bytes[offset] ^ 0x10);
  WriteText(path, bytes);
}

struct CliResult {
  int exit_code = -1;
  std::string out;
  std::string err;
  nlohmann::json Json() const { return nlohmann::json::parse(out, nullptr, false); }
  std::string Shown() const {
    return "exit " + std::to_string(exit_code) + "\n" + out + "--- stderr\n" + err;
  }
};

struct CliOptions {
  std::vector<std::string> env;  // "NAME=value"
  bool unprivileged = false;
  /// Called with the process and the file of its stdout.
  std::function<void(pid_t, const std::string&)> while_running;
};

inline std::string CliPath() {
  const char* dir = ::getenv("HOLDFAST_BIN_DIR");
  return std::string(dir != nullptr ? dir : "bin") + "/holdfast";
}

[[noreturn]] inline void ExecCli(const std::vector<std::string>& args, const CliOptions& options) {
  std::vector<std::string> words = {CliPath()};
  words.insert(words.end(), args.begin(), args.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  ::unsetenv("HOLDFAST_ENDPOINT");
  ::unsetenv("NO_COLOR");
  ::setenv("TERM", "xterm", 1);
  for (const std::string& variable : options.env) ::putenv(const_cast<char*>(variable.c_str()));
  if (options.unprivileged && ::getuid() == 0) {
    if (::setgroups(0, nullptr) != 0 || ::setgid(65534) != 0 || ::setuid(65534) != 0) ::_exit(97);
  }
  ::execv(argv[0], argv.data());
  ::_exit(98);
}

/// ExitOf() returns this plus the signal for a process that a signal ended.
inline constexpr int kBySignal = 1000;

inline int ExitOf(pid_t child) {
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : kBySignal + WTERMSIG(status);
}

/// Runs `holdfast args…` with stdin from /dev/null and waits for its end.
inline CliResult RunCli(const std::vector<std::string>& args, const CliOptions& options = {}) {
  TempFolder folder;
  std::string out = folder / "out";
  std::string err = folder / "err";
  int fds[3] = {::open("/dev/null", O_RDONLY | O_CLOEXEC),
                ::open(out.c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0666),
                ::open(err.c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0666)};
  pid_t child = ::fork();
  if (child == 0) {
    for (int i = 0; i < 3; ++i) ::dup2(fds[i], i);
    ExecCli(args, options);
  }
  for (int fd : fds) ::close(fd);
  if (options.while_running) options.while_running(child, out);
  CliResult result;
  result.exit_code = ExitOf(child);
  result.out = ReadText(out);
  result.err = ReadText(err);
  return result;
}

/// Runs `holdfast args…` on a terminal that is `columns` wide, and types `input`. `out` has
/// everything that is printed.
inline CliResult RunOnTerminal(const std::vector<std::string>& args, unsigned short columns,
                               const std::string& input = "", const CliOptions& options = {}) {
  winsize size{};
  size.ws_row = 40;
  size.ws_col = columns;
  int master = -1;
  pid_t child = ::forkpty(&master, nullptr, nullptr, &size);
  if (child == 0) ExecCli(args, options);
  CliResult result;
  if (!input.empty()) {
    EXPECT_EQ(::write(master, input.data(), input.size()), static_cast<ssize_t>(input.size()));
  }
  char buffer[4096];
  while (true) {
    ssize_t n = ::read(master, buffer, sizeof(buffer));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    result.out.append(buffer, static_cast<size_t>(n));
  }
  result.exit_code = ExitOf(child);
  ::close(master);
  return result;
}

inline std::vector<std::string> Lines(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

inline ShardIdentity Identity(const std::string& job, uint64_t incarnation, uint64_t step,
                              uint32_t rank, uint32_t world) {
  return {job, {Incarnation{incarnation}, Step{step}}, Rank{rank}, world};
}

/// An image with a sharded matrix, a scalar, an empty tensor, a UTF-8 name and an extra. Its bytes
/// depend only on the identity.
struct TestImage {
  ShardIdentity identity;
  AlignedBuffer slot;
  std::span<std::byte> image;
  uint64_t data_offset = 0;

  TestImage(const ShardIdentity& id, uint64_t rows) : identity(id) {
    std::vector<TensorSpec> tensors = {{"layers.0.weight",
                                        DType::kF32,
                                        {rows, 64},
                                        {rows * id.world, 64},
                                        {rows * id.rank.value, 0}},
                                       {"Größe.重み", DType::kBF16, {3}, {3}, {0}},
                                       {"step", DType::kI64, {}, {}, {}},
                                       {"empty", DType::kU8, {0, 5}, {0, 5}, {0, 0}}};
    auto layout = ImageLayout::Plan(tensors);
    EXPECT_TRUE(layout.has_value());
    ExtraSize extras[] = {{"rng", 16}};
    auto header = layout->RenderHeader(identity, extras);
    EXPECT_TRUE(header.has_value());
    data_offset = header->size();
    uint64_t bytes = data_offset + layout->tensor_bytes() + 16;
    slot = *AlignedBuffer::Allocate(bytes);
    image = slot.span().first(bytes);
    std::memcpy(image.data(), header->data(), header->size());
    uint64_t x = id.version.step.value * 7919 + id.rank.value * 104729 + 1;
    for (uint64_t i = data_offset; i < bytes; ++i) {
      x = x * 6364136223846793005ULL + 1442695040888963407ULL;
      image[i] = static_cast<std::byte>(x >> 56);
    }
  }

  std::string bytes() const { return {reinterpret_cast<const char*>(image.data()), image.size()}; }
  ShardSeal Seal() const {
    ShardSeal seal;
    seal.identity = identity;
    seal.image_bytes = image.size();
    for (uint64_t at = 0; at < image.size(); at += kChunkBytes)
      seal.chunk_crcs.push_back(
          Crc32c(image.subspan(at, std::min<uint64_t>(kChunkBytes, image.size() - at))));
    seal.wall_nanos = 1'700'000'000'000'000'000;
    return seal;
  }
};

inline std::unique_ptr<Volume> OpenVolume(const std::vector<std::string>& paths) {
  std::vector<std::unique_ptr<Directory>> dirs;
  for (const std::string& path : paths) {
    auto dir = OpenDirectory(path, IoOptions());
    EXPECT_TRUE(dir.has_value()) << dir.error().ToString();
    dirs.push_back(*std::move(dir));
  }
  VolumeOptions options;
  options.cluster = "test";
  options.node = "n0";
  auto volume = Volume::Open(std::move(dirs), options, Clock::Real());
  EXPECT_TRUE(volume.has_value()) << volume.error().ToString();
  return *std::move(volume);
}

/// Publishes the image with a seal that names `life`.
inline void Publish(Volume& volume, const TestImage& image, LifeId life = {}) {
  ShardSeal seal = image.Seal();
  seal.life = life;
  auto writer = volume.CreateShard(image.identity, image.image);
  ASSERT_TRUE(writer.has_value()) << writer.error().ToString();
  Status status = (*writer)->Publish(seal);
  ASSERT_TRUE(status.ok()) << status.ToString();
}

/// Rows of an image that is a little longer than three chunks.
inline constexpr uint64_t kRows = 12'400;

/// A data directory (or several of one node) with versions 1-10 and 1-20 of job "lm", `ranks` of a
/// world of `world`.
inline void MakeDataDirs(const std::vector<std::string>& paths, const std::vector<uint32_t>& ranks,
                         uint32_t world, uint64_t rows = kRows) {
  auto volume = OpenVolume(paths);
  for (uint64_t step : {10, 20}) {
    for (uint32_t rank : ranks)
      Publish(*volume, TestImage(Identity("lm", 1, step, rank, world), rows));
  }
}

}  // namespace holdfast::cli
