// `holdfast doctor` before the first job, on this machine, with real causes: limits, a full tmpfs,
// refused system calls, certificates, and no coordinator.

#include <fmt/format.h>
#include <sys/mount.h>
#include <sys/resource.h>

#include "cli/doctor/capacity_checks.h"
#include "cli/doctor/cluster_checks.h"
#include "cli/doctor/host_checks.h"
#include "cli/doctor/tls_checks.h"
#include "tests/cli/cli_test_util.h"

namespace holdfast::cli {
namespace {

using ::testing::HasSubstr;

class PreflightTest : public ::testing::Test {
 protected:
  void SetUp() override {
    fs::create_directory(data_);
    Configure("");
  }
  void Configure(const std::string& more) {
    WriteText(config_,
              fmt::format("node = \"here\"\ncoordinator = \"unix:{}/none\"\nrun_dir = "
                          "\"{}\"\ndata_dirs = [\"{}\"]\n{}\n[arena]\nbytes = "
                          "\"16MiB\"\n[peers]\nlisten = \"unix:{}/p\"\n{}",
                          folder_.path(), folder_.path(), data_, top_, folder_.path(), more));
  }
  CliResult Doctor(std::vector<std::string> more = {}) const {
    std::vector<std::string> args = {"doctor", "--config", config_,     "--disk", "8MiB",
                                     "-o",     "json",     "--timeout", "2s"};
    args.insert(args.end(), more.begin(), more.end());
    return RunCli(args);
  }
  /// Runs the program with this prefix, such as a launcher.
  CliResult DoctorUnder(const std::string& prefix) const {
    const std::string out = folder_ / "out";
    const std::string command =
        fmt::format("{} {} doctor --config {} --disk 8MiB -o json --timeout 2s >{} 2>{}.err",
                    prefix, CliPath(), config_, out, out);
    CliResult result;
    const int status = std::system(command.c_str());
    result.exit_code = WEXITSTATUS(status);
    result.out = ReadText(out);
    result.err = ReadText(out + ".err");
    return result;
  }
  static nlohmann::json Of(const CliResult& result, const std::string& check) {
    const auto json = result.Json();
    if (!json.is_object()) return {};
    for (const auto& finding : json["findings"]) {
      if (finding["check"] == check) return finding;
    }
    return {};
  }
  static void ExpectFinding(const CliResult& result, const std::string& check,
                            const std::string& readiness, const std::string& what) {
    const auto finding = Of(result, check);
    ASSERT_TRUE(finding.is_object()) << check << " is missing: " << result.Shown();
    EXPECT_EQ(finding["result"], readiness) << finding.dump();
    EXPECT_THAT(finding["what"].get<std::string>(), HasSubstr(what));
    const bool needs_remedy = readiness != "ok" && readiness != "skipped";
    EXPECT_EQ(!finding["remedy"].get<std::string>().empty(), needs_remedy) << finding.dump();
  }
  /// Makes a self-signed certificate and its key in `folder_`, valid for the days from `begin` to
  /// `end` relative to now.
  bool MakeCertificate(int begin, int end) const {
    const auto date = [](int days) {
      const time_t at = Clock::Real().WallNanos() / 1'000'000'000 + time_t{days} * 86'400;
      std::tm parts{};
      ::gmtime_r(&at, &parts);
      char text[32];
      std::strftime(text, sizeof(text), "%Y%m%d%H%M%SZ", &parts);
      return std::string(text);
    };
    const std::string folder = folder_.path();
    std::ofstream(folder + "/index.txt").flush();
    std::ofstream(folder + "/serial") << "01\n";
    std::ofstream(folder + "/ca.cnf")
        << "[ca]\ndefault_ca=d\n[d]\nnew_certs_dir=" << folder << "\ndatabase=" << folder
        << "/index.txt\nserial=" << folder << "/serial\ndefault_md=sha256\npolicy=p\n[p]\n"
        << "commonName=supplied\n";
    const std::string command = fmt::format(
        "cd {} && openssl req "
        "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout key.pem -out csr.pem "
        "-subj /CN=here >/dev/null 2>&1 && openssl ca -config ca.cnf -selfsign -batch -keyfile "
        "key.pem -in csr.pem -out cert.pem -notext -startdate {} -enddate {} >/dev/null 2>&1 && "
        "chmod 600 key.pem",
        folder, date(begin), date(end));
    return std::system(command.c_str()) == 0;
  }
  std::string Tls() const {
    return fmt::format(
        "[tls]\nca = \"{0}/cert.pem\"\ncert = \"{0}/cert.pem\"\nkey = \"{0}/key.pem\"\n",
        folder_.path());
  }

  TempFolder folder_;
  const std::string data_ = folder_ / "data";
  const std::string config_ = folder_ / "agent.toml";
  std::string top_;
};

TEST_F(PreflightTest, EachLineHasAFindingAndWhatToDo) {
  const CliResult result = Doctor();
  EXPECT_EQ(result.exit_code, 2) << result.Shown();
  EXPECT_EQ(result.Json()["kind"], "preflight");
  ExpectFinding(result, "configuration", "ok", config_);
  ExpectFinding(result, "kernel", "ok", "Linux");
  ExpectFinding(result, "disk " + data_, "ok", "free, writes ");
  ExpectFinding(result, "memory", "ok", "for an arena of 16 MiB");
  ExpectFinding(result, "tls", "skipped", "not configured");
  ExpectFinding(result, "coordinator", "fail", "/none");
  ExpectFinding(result, "capacity", "skipped", "--save-bytes");
  EXPECT_TRUE(fs::is_empty(data_)) << "the write test leaves nothing";
  const nlohmann::json document = result.Json();
  for (const auto& finding : document["findings"]) {
    const bool good = finding["result"] == "ok" || finding["result"] == "skipped";
    EXPECT_EQ(finding["remedy"].get<std::string>().empty(), good) << finding.dump();
  }
}

TEST_F(PreflightTest, TheTableHasOneLineAndOneRemedyForEachFinding) {
  const CliResult result = RunCli({"doctor", "--config", config_, "--disk", "8MiB"});
  EXPECT_EQ(result.exit_code, 2) << result.Shown();
  EXPECT_THAT(result.out, HasSubstr("FAIL"));
  EXPECT_THAT(result.out, HasSubstr("-> start holdfast-coordinator"));
}

TEST_F(PreflightTest, LowLimitsAreFound) {
  const CliResult result = DoctorUnder("ulimit -S -n 256; ulimit -S -l 64;");
  ExpectFinding(result, "open files", "fail", "256");
  EXPECT_THAT(Of(result, "open files")["remedy"].get<std::string>(), HasSubstr("LimitNOFILE"));
  ExpectFinding(result, "locked memory", "warn", "64 KiB, less than the arena of 16 MiB");
  const CliResult middle = DoctorUnder("ulimit -S -n 2000;");
  ExpectFinding(middle, "open files", "warn", "2000");
}

TEST_F(PreflightTest, ARefusedIoUringIsAWarningAndTheDiskIsTestedAllTheSame) {
#ifndef HOLDFAST_CONFINE
  GTEST_SKIP() << "built without libseccomp, or with a sanitizer";
#else
  const CliResult result = DoctorUnder(fmt::format("{} --profile {}/no-io-uring-eperm.json --",
                                                   HOLDFAST_CONFINE, HOLDFAST_PROFILES));
  ExpectFinding(result, "io_uring", "warn", "Operation not permitted");
  ExpectFinding(result, "disk " + data_, "ok", "(posix");
  Configure("[io]\nio_uring = false\n");
  ExpectFinding(Doctor(), "io_uring", "skipped", "io.io_uring = false");
#endif
}

TEST_F(PreflightTest, AFullDiskFails) {
  if (::getuid() != 0) GTEST_SKIP() << "only root can mount";
  if (::mount("tmpfs", data_.c_str(), "tmpfs", 0, "size=1m") != 0) {
    GTEST_SKIP() << "this machine refuses mounts";
  }
  WriteText(data_ + "/big", std::string(1 << 20, 'x'));
  const CliResult result = Doctor();
  EXPECT_EQ(::umount(data_.c_str()), 0);
  ExpectFinding(result, "disk " + data_, "fail", "only 0 B are free");
}

TEST_F(PreflightTest, AFullSharedMemoryIsAWarning) {
  if (::getuid() != 0) GTEST_SKIP() << "only root can mount";
  if (::mount("tmpfs", data_.c_str(), "tmpfs", 0, "size=2g") != 0) {
    GTEST_SKIP() << "this machine refuses mounts";
  }
  EXPECT_EQ(CheckSharedMemory(data_).readiness, Readiness::kOk);
  ASSERT_EQ(::mount("tmpfs", data_.c_str(), "tmpfs", MS_REMOUNT, "size=64m"), 0);
  EXPECT_THAT(CheckSharedMemory(data_).what, HasSubstr("small"));
  WriteText(data_ + "/big", std::string(60 << 20, 'x'));
  const Finding full = CheckSharedMemory(data_);
  EXPECT_EQ(::umount(data_.c_str()), 0);
  EXPECT_EQ(full.readiness, Readiness::kWarn);
  EXPECT_THAT(full.what, HasSubstr("full"));
}

TEST_F(PreflightTest, AMissingDirectoryFailsAndIsNotCreated) {
  fs::remove(data_);
  ExpectFinding(Doctor(), "disk " + data_, "fail", "no such directory");
  EXPECT_FALSE(fs::exists(data_));
}

TEST_F(PreflightTest, AnotherUsersDiskIsUnknown) {
  if (::getuid() != 0) GTEST_SKIP() << "only root can change the user";
  fs::permissions(folder_.path(), fs::perms(0755));
  fs::permissions(data_, fs::perms::owner_all);
  fs::permissions(config_, fs::perms(0644));
  CliOptions options;
  options.unprivileged = true;
  const CliResult result =
      RunCli({"doctor", "--config", config_, "--disk", "8MiB", "-o", "json"}, options);
  ExpectFinding(result, "disk " + data_, "unknown", "");
}

TEST_F(PreflightTest, TheDatesOfCertificatesAreChecked) {
  const auto checked = [this](int begin, int end) {
    EXPECT_TRUE(MakeCertificate(begin, end)) << "openssl";
    Configure(Tls());
    return Doctor();
  };
  ExpectFinding(checked(-10, 100), "tls.cert", "ok", "is valid until");
  ExpectFinding(checked(-10, -1), "tls.cert", "fail", "expired on");
  ExpectFinding(checked(2, 100), "tls.cert", "fail", "valid only from");
  const CliResult soon = checked(-10, 5);
  ExpectFinding(soon, "tls.cert", "warn", " days from now");
  ExpectFinding(soon, "tls.ca", "warn", " days from now");
  // A certificate that the agent renews is always valid for a short time only.
  const auto renewed = [this](int begin, int end) {
    EXPECT_TRUE(MakeCertificate(begin, end)) << "openssl";
    return CheckTlsDates(
               {.ca = "", .cert = folder_ / "cert.pem", .key = "", .insecure_loopback = false},
               true, Clock::Real().WallNanos())
        .at(0);
  };
  EXPECT_EQ(renewed(-1, 1).readiness, Readiness::kOk);
  EXPECT_THAT(renewed(-1, 1).what, HasSubstr(" UTC, and is renewed before"));
  const Finding overdue = renewed(-4, 1);
  EXPECT_EQ(overdue.readiness, Readiness::kWarn);
  EXPECT_THAT(overdue.what, HasSubstr("has not been renewed"));
  EXPECT_THAT(renewed(-4, -1).remedy, HasSubstr("join again"));
  WriteText(folder_ / "cert.pem", "nothing");
  ExpectFinding(Doctor(), "tls.cert", "fail", "no certificate");
  fs::remove(folder_ / "cert.pem");
  ExpectFinding(Doctor(), "tls.cert", "fail", "No such file");
}

TEST_F(PreflightTest, AnArenaLargerThanTheMemoryFails) {
  const CliResult result = Doctor({"--set", "arena.bytes=1000TiB"});
  ExpectFinding(result, "memory", "fail", "1000 TiB");
}

TEST_F(PreflightTest, RoomIsComparedWithWhatIsSaved) {
  const CliResult result = Doctor({"--save-bytes", "8MiB"});
  ExpectFinding(result, "arena", "fail", "24 MiB are needed");
  EXPECT_EQ(Of(result, "arena")["remedy"], "set arena.bytes to at least 24 MiB");
  constexpr uint64_t kMiB = 1 << 20;
  const auto of = [](uint64_t disk) { return CheckCapacity({kMiB, 3 * kMiB, disk, 3}); };
  ASSERT_EQ(of(4 * kMiB).size(), 2U);
  EXPECT_EQ(of(4 * kMiB)[0].readiness, Readiness::kOk);
  EXPECT_EQ(of(4 * kMiB)[1].readiness, Readiness::kOk);
  EXPECT_EQ(of(4 * kMiB - 1)[1].readiness, Readiness::kFail);
}

TEST_F(PreflightTest, AClockThatDiffersIsFound) {
  ClusterView view;
  view.status.set_wall_nanos(1);
  view.skew.uncertainty_nanos = 1'000'000;
  const auto of = [&view](int64_t skew_ms) {
    view.skew.nanos = skew_ms * 1'000'000;
    return CheckClock(view).readiness;
  };
  EXPECT_EQ(of(0), Readiness::kOk);
  EXPECT_EQ(of(-1001), Readiness::kOk) << "within the uncertainty";
  EXPECT_EQ(of(-1100), Readiness::kWarn);
  EXPECT_EQ(of(1100), Readiness::kWarn);
  EXPECT_EQ(of(-61'000), Readiness::kFail);
  view.status.set_wall_nanos(0);
  EXPECT_EQ(of(99'000), Readiness::kSkipped) << "an older coordinator";
}

TEST_F(PreflightTest, BadArgumentsAreRefusedWithAReason) {
  const CliResult missing = RunCli({"doctor", "--config", folder_ / "none.toml"});
  EXPECT_NE(missing.exit_code, 0) << missing.Shown();
  EXPECT_THAT(missing.err, HasSubstr("none.toml"));
  const CliResult unknown = Doctor({"--set", "arena.byte=1"});
  EXPECT_THAT(unknown.err, HasSubstr("did you mean 'arena.bytes'"));
  EXPECT_EQ(RunCli({"doctor", "--self-test", "--save-bytes", "1GiB"}).exit_code, 64);
  EXPECT_EQ(RunCli({"doctor", "--data-dir", data_}).exit_code, 64);
  ExpectFinding(Doctor({"--set", "arena.bytes=1"}), "configuration", "fail", "too small");
}

}  // namespace
}  // namespace holdfast::cli
