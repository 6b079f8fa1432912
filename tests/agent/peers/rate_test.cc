// The rates of encryption and of tags between peers on one core, as shares of the rate in plain
// text.
#include <gtest/gtest.h>
#include <time.h>

#include <algorithm>
#include <cmath>

#include "base/certificates/authority.h"
#include "base/certificates/durable_file.h"
#include "tests/agent/peers/peers_test_util.h"

namespace holdfast::agent {
namespace {
namespace c = certificates;

constexpr uint64_t kBytes = 128ULL << 20;
constexpr int kRounds = 5;
constexpr int kRoundsMax = 20;  // on a busy machine
// Encryption costs more than the transfer itself. This bound detects a regression.
constexpr double kEncryptedShareMin = 0.2;
// OpenSSL's Poly1305 uses these instructions where the processor has them.
const double kTaggedShareMin = __builtin_cpu_supports("avx512ifma") != 0 ? 0.6 : 0.4;

/// Returns the CPU time of this process. Both sides are in it, so the time is that of one core that
/// they share, and other processes do not change the result much.
double CpuSeconds() {
  timespec time{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) / 1e9;
}

double SecondsToRead(TestSource& source, const PeerTlsFiles& tls, bool encrypt = true) {
  TcpPeerServerOptions server_options;
  server_options.cluster = "test";
  server_options.node = "server";
  server_options.tls = tls;
  server_options.encrypt = encrypt;
  TcpTransportOptions transport_options;
  transport_options.cluster = "test";
  transport_options.node = "server";
  transport_options.tls = tls;
  transport_options.encrypt = encrypt;
  auto server = TcpPeerServer::Start(server_options, source, Clock::Real());
  auto transport = MakeTcpTransport(transport_options, Clock::Real());
  auto stream = (*transport)->Open((*server)->address(), ShardRequest(1, 0, kBytes), Far());
  EXPECT_TRUE(stream);
  if (!stream) return 0;
  std::vector<std::byte> unit(kPeerUnitBytes);
  const double begun = CpuSeconds();
  uint64_t bytes = 0;
  for (auto got = (*stream)->Read(unit, Far()); got && *got != 0;
       got = (*stream)->Read(unit, Far())) {
    bytes += *got;
  }
  EXPECT_EQ(bytes, kBytes);
  return CpuSeconds() - begun;
}

TEST(PeerRateTest, TlsAndTagsHaveAShareOfTheRateOfPlainTextOnOneCore) {
  const TempDir dir;
  const int64_t now = Clock::Real().WallNanos() / 1'000'000'000;
  const auto authority = *c::Authority::Create("test", now);
  const auto key = *c::PrivateKey::Generate();
  const auto made = authority.Sign(
      key.get(), {"spiffe://test/agent/server", {"127.0.0.1"}, now - 60, now + 3600});
  const std::string file = dir.Write("server", made->ToPem() + key.ToPem());
  const PeerTlsFiles tls{dir.Write("ca", authority.certificate().ToPem()), file, file};
  TestSource source;
  source.Add(1, kBytes);
  // The least time of each is that with the least interference by other processes.
  double plain = HUGE_VAL;
  double encrypted = HUGE_VAL;
  double tagged = HUGE_VAL;
  const auto enough = [&] {
    return plain / encrypted >= kEncryptedShareMin && plain / tagged >= kTaggedShareMin;
  };
  for (int round = 0; round < kRounds || (round < kRoundsMax && !enough()); ++round) {
    plain = std::min(plain, SecondsToRead(source, {}));
    encrypted = std::min(encrypted, SecondsToRead(source, tls));
    tagged = std::min(tagged, SecondsToRead(source, tls, false));
  }
  RecordProperty("encrypted", std::to_string(plain / encrypted));
  RecordProperty("tagged", std::to_string(plain / tagged));
  std::printf("TLS has %.2f and tags have %.2f of the rate in plain text, %.2f GB/s\n",
              plain / encrypted, plain / tagged, kBytes / plain / 1e9);
  EXPECT_GE(plain / encrypted, kEncryptedShareMin);
  EXPECT_GE(plain / tagged, kTaggedShareMin);
}

}  // namespace
}  // namespace holdfast::agent
