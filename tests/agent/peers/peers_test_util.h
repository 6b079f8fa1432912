#pragma once

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "agent/peers/tcp_server.h"
#include "agent/peers/tcp_transport.h"
#include "agent/peers/transport.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "base/random.h"

namespace holdfast::agent {

inline Clock::TimePoint In(int ms) { return Clock::Real().Now() + std::chrono::milliseconds(ms); }
/// A deadline that is sufficient on the slowest machine; a test that reaches it fails.
inline Clock::TimePoint Far() { return In(60'000); }

class TempDir {
 public:
  TempDir() {
    std::string pattern = std::filesystem::temp_directory_path() / "holdfast-peers-XXXXXX";
    path_ = ::mkdtemp(pattern.data());
  }
  ~TempDir() { std::filesystem::remove_all(path_); }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  const std::string& path() const { return path_; }
  std::string Write(const std::string& name, const std::string& text, mode_t mode = 0600) const {
    const std::string file = path_ + "/" + name;
    std::ofstream(file, std::ios::binary) << text;
    EXPECT_EQ(::chmod(file.c_str(), mode), 0);
    return file;
  }

 private:
  std::string path_;
};

inline std::vector<std::byte> RandomBytes(uint64_t bytes, uint64_t seed) {
  Random random(seed);
  std::vector<std::byte> out(bytes);
  for (uint64_t at = 0; at < bytes; at += 8) {
    const uint64_t word = random.Next();
    std::memcpy(out.data() + at, &word, std::min<uint64_t>(8, bytes - at));
  }
  return out;
}

/// An object whose bytes become final through SetFinal(). Thread-safe.
class TestObject {
 public:
  explicit TestObject(std::vector<std::byte> bytes) : bytes_(std::move(bytes)) {
    final_ = bytes_.size();
  }
  const std::vector<std::byte>& bytes() const { return bytes_; }
  void SetFinal(uint64_t bytes) {
    MutexLock lock(mutex_);
    final_ = bytes;
    changed_.NotifyAll();
  }
  /// Makes reads of bytes from `position` on fail with `error`.
  void FailAt(uint64_t position, Status error) {
    MutexLock lock(mutex_);
    fail_at_ = position;
    error_ = std::move(error);
    changed_.NotifyAll();
  }
  /// Waits until `count` readers have been cancelled.
  bool AwaitCancelled(uint64_t count = 1) {
    MutexLock lock(mutex_);
    while (cancelled_ < count) {
      if (!changed_.WaitFor(mutex_, std::chrono::seconds(30))) return false;
    }
    return true;
  }
  /// Waits until `count` readers wait for bytes.
  bool AwaitWaiting(uint64_t count) {
    MutexLock lock(mutex_);
    while (waiting_ < count) {
      if (!changed_.WaitFor(mutex_, std::chrono::seconds(30))) return false;
    }
    return true;
  }

 private:
  friend class TestReader;
  const std::vector<std::byte> bytes_;
  Mutex mutex_;
  CondVar changed_;
  uint64_t final_ HOLDFAST_GUARDED_BY(mutex_);
  uint64_t fail_at_ HOLDFAST_GUARDED_BY(mutex_) = ~uint64_t{0};
  Status error_ HOLDFAST_GUARDED_BY(mutex_);
  uint64_t cancelled_ HOLDFAST_GUARDED_BY(mutex_) = 0;
  uint64_t waiting_ HOLDFAST_GUARDED_BY(mutex_) = 0;
};

class TestReader final : public PeerReader {
 public:
  explicit TestReader(TestObject& object) : object_(object) {}

  Result<std::span<const std::byte>> Read(uint64_t offset, uint64_t bytes,
                                          Clock::TimePoint deadline) override {
    EXPECT_GE(bytes, 1U);
    EXPECT_LE(bytes, kPeerUnitBytes);
    if (begun_) {
      EXPECT_EQ(offset, next_) << "reads go forward without gaps";
    }
    begun_ = true;
    const uint64_t size = object_.bytes_.size();
    const uint64_t begin = std::min(offset, size);
    const uint64_t end = begin + std::min(bytes, size - begin);
    MutexLock lock(object_.mutex_);
    ++object_.waiting_;
    object_.changed_.NotifyAll();
    while (!cancelled_ && end <= object_.fail_at_ && end > object_.final_) {
      const auto left = deadline - Clock::Real().Now();
      if (left <= Clock::Duration::zero()) {
        --object_.waiting_;
        return Fail(DeadlineExceededError("not final yet"));
      }
      object_.changed_.WaitFor(object_.mutex_, left);
    }
    --object_.waiting_;
    if (cancelled_) return Fail(CancelledError("the reader was cancelled"));
    if (end > object_.fail_at_) return Fail(object_.error_);
    next_ = end;
    return std::span(object_.bytes_).subspan(begin, end - begin);
  }
  void Cancel() override {
    MutexLock lock(object_.mutex_);
    if (!cancelled_) ++object_.cancelled_;
    cancelled_ = true;
    object_.changed_.NotifyAll();
  }

 private:
  TestObject& object_;
  bool begun_ = false;
  uint64_t next_ = 0;
  bool cancelled_ = false;  // under the object's mutex
};

/// Shards by rank.
class TestSource final : public PeerSource {
 public:
  TestObject& Add(uint32_t rank, uint64_t bytes) {
    MutexLock lock(mutex_);
    return objects_.try_emplace(rank, RandomBytes(bytes, rank + 1)).first->second;
  }
  void Refuse(uint32_t rank, Status error) {
    MutexLock lock(mutex_);
    refusals_[rank] = std::move(error);
  }
  PeerRequest last_request() {
    MutexLock lock(mutex_);
    return last_;
  }

  Result<std::unique_ptr<PeerReader>> Open(const PeerRequest& request) override {
    MutexLock lock(mutex_);
    last_ = request;
    if (auto refusal = refusals_.find(request.rank.value); refusal != refusals_.end()) {
      return Fail(refusal->second);
    }
    auto found = objects_.find(request.rank.value);
    if (found == objects_.end()) return Fail(NotFoundError("no such shard here"));
    return std::make_unique<TestReader>(found->second);
  }

 private:
  Mutex mutex_;
  std::map<uint32_t, TestObject> objects_ HOLDFAST_GUARDED_BY(mutex_);  // never moved
  std::map<uint32_t, Status> refusals_ HOLDFAST_GUARDED_BY(mutex_);
  PeerRequest last_ HOLDFAST_GUARDED_BY(mutex_);
};

inline PeerRequest ShardRequest(uint32_t rank, uint64_t offset, uint64_t bytes) {
  PeerRequest request;
  request.kind = PeerRequestKind::kShard;
  request.job = "gpt";
  request.version = {Incarnation{3}, Step{120}};
  request.incarnation = Incarnation{4};
  request.rank = Rank{rank};
  request.offset = offset;
  request.bytes = bytes;
  return request;
}

/// Reads a stream to its end with a buffer of `room` bytes.
inline Result<std::vector<std::byte>> ReadAll(PeerStream& stream, Clock::TimePoint deadline,
                                              size_t room = kPeerUnitBytes) {
  std::vector<std::byte> all;
  std::vector<std::byte> buffer(room);
  for (;;) {
    HOLDFAST_ASSIGN_OR_RETURN(const size_t got, stream.Read(buffer, deadline));
    if (got == 0) return all;
    all.insert(all.end(), buffer.begin(), buffer.begin() + static_cast<ptrdiff_t>(got));
  }
}

inline Result<std::vector<std::byte>> Fetch(PeerTransport& transport, const std::string& address,
                                            const PeerRequest& request, Clock::TimePoint deadline,
                                            size_t room = kPeerUnitBytes) {
  HOLDFAST_ASSIGN_OR_RETURN(auto stream, transport.Open(address, request, deadline));
  return ReadAll(*stream, deadline, room);
}

/// Returns whether the spans are equal; unlike EXPECT_EQ, prints no megabytes if they differ.
inline bool Same(std::span<const std::byte> a, std::span<const std::byte> b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size()) == 0);
}

/// Returns the bytes of an object that a request covers.
inline std::vector<std::byte> Expected(const TestObject& object, uint64_t offset, uint64_t bytes) {
  const uint64_t size = object.bytes().size();
  const uint64_t begin = std::min(offset, size);
  const uint64_t end = begin + std::min(bytes, size - begin);
  return {object.bytes().begin() + static_cast<ptrdiff_t>(begin),
          object.bytes().begin() + static_cast<ptrdiff_t>(end)};
}

/// An authority and its certificates for 127.0.0.1 (or for other names), made by the openssl
/// command.
class TestCertificates {
 public:
  explicit TestCertificates(const std::string& names = "IP:127.0.0.1,DNS:localhost") {
    const std::string key = " -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";
    made_ = Run("req -x509" + key + " -keyout ca.key -out ca.pem -subj /CN=ca -days 2") &&
            Run("req -x509" + key + " -keyout other.key -out other.pem -subj /CN=other -days 2") &&
            Make("node", names, "ca") && Make("far", "IP:10.9.8.7", "ca") &&
            Make("stranger", "IP:127.0.0.1", "other");
  }
  /// Returns false where the openssl command is not installed.
  bool made() const { return made_; }
  PeerTlsFiles Node() const { return Files("ca", "node"); }
  /// Returns a certificate for another address.
  PeerTlsFiles Far() const { return Files("ca", "far"); }
  /// Returns a certificate of another authority.
  PeerTlsFiles Stranger() const { return Files("ca", "stranger"); }
  /// Makes a certificate of the authority with these subject alternative names, e.g.
  /// "IP:127.0.0.1,URI:spiffe://c/agent/n0", in files called `name`.
  PeerTlsFiles Issue(const std::string& name, const std::string& names) const {
    EXPECT_TRUE(Make(name, names, "ca")) << name;
    return Files("ca", name);
  }

  /// Returns the certificates, made once per process.
  static const TestCertificates& Get() {
    static const TestCertificates certificates;
    return certificates;
  }

 private:
  bool Run(const std::string& arguments) const {
    const std::string command =
        "cd " + dir_.path() + " && openssl " + arguments + " >/dev/null 2>&1";
    return std::system(command.c_str()) == 0;
  }
  bool Make(const std::string& name, const std::string& names, const std::string& ca) const {
    dir_.Write(name + ".ext", "subjectAltName=" + names + "\n");
    return Run("req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout " + name +
               ".key -out " + name + ".csr -subj /CN=" + name) &&
           Run("x509 -req -in " + name + ".csr -CA " + ca + ".pem -CAkey " + ca +
               ".key -CAcreateserial -days 2 -extfile " + name + ".ext -out " + name + ".pem");
  }
  PeerTlsFiles Files(const std::string& ca, const std::string& name) const {
    return {dir_.path() + "/" + ca + ".pem", dir_.path() + "/" + name + ".pem",
            dir_.path() + "/" + name + ".key"};
  }

  TempDir dir_;
  bool made_ = false;
};

}  // namespace holdfast::agent
