// Authorities, chains, tokens and the files of certificates.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>

#include "base/certificates/authority.h"
#include "base/certificates/durable_file.h"
#include "base/certificates/enrollment.h"
#include "base/certificates/identity_file.h"
#include "base/certificates/join_token.h"
#include "base/certificates/request.h"
#include "base/certificates/revoked_names.h"

namespace holdfast::certificates {
namespace {
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int64_t kNow = 1'800'000'000;
constexpr const char* kCoordinator = "spiffe://test/coordinator/c";

class CertificatesTest : public ::testing::Test {
 protected:
  CertificatesTest() : authority_(*Authority::Create("test", kNow)) {}

  std::string Chain(const Authority& authority, const std::string& uri, int64_t begin = kNow - 300,
                    int64_t end = kNow + 86'400) const {
    const auto key = *PrivateKey::Generate();
    return authority.Sign(key.get(), {uri, {"node-1", "127.0.0.1", "::1"}, begin, end})->ToPem() +
           authority.certificate().ToPem();
  }
  Pin PinFor(const std::string& host) const { return {authority_.certificate().Hash(), host}; }
  std::string Refused(const std::string& chain, const std::string& host = "node-1") const {
    const auto cluster = CheckPinnedChain(chain, PinFor(host), kNow);
    return cluster ? "accepted" : cluster.error().message();
  }

  Authority authority_;
};

TEST_F(CertificatesTest, TheChainOfACoordinatorIsAccepted) {
  const std::string chain = Chain(authority_, kCoordinator);
  for (const char* host : {"node-1", "127.0.0.1", "::1"}) {
    const auto cluster = CheckPinnedChain(chain, PinFor(host), kNow);
    ASSERT_TRUE(cluster) << host << cluster.error().ToString();
    EXPECT_EQ(*cluster, "test");
  }
  const auto leaf = *Certificate::FromPem(chain);
  EXPECT_THAT(leaf.SpiffeUris(), ElementsAre(kCoordinator));
  EXPECT_THAT(leaf.Hosts(), ElementsAre("node-1", "127.0.0.1", "::1"));
}

TEST_F(CertificatesTest, OtherChainsAreRefused) {
  const Authority other = *Authority::Create("test", kNow);
  EXPECT_THAT(Refused(Chain(other, kCoordinator)), HasSubstr("wrong CA"));
  // A leaf of another authority with the certificate of the pinned one, which is public.
  const std::string foreign = Chain(other, kCoordinator);
  EXPECT_THAT(Refused(Certificate::FromPem(foreign)->ToPem() + authority_.certificate().ToPem()),
              HasSubstr("not accepted"));
  EXPECT_THAT(Refused(authority_.certificate().ToPem()), HasSubstr("authority's own certificate"));
  EXPECT_THAT(Refused(Chain(authority_, "spiffe://test/agent/n1")),
              HasSubstr("not of a coordinator"));
  EXPECT_THAT(Refused(Chain(authority_, kCoordinator), "node-2"),
              HasSubstr("not for 'node-2', but for node-1"));
  EXPECT_THAT(Refused(Chain(authority_, kCoordinator), "127.0.0.2"), HasSubstr("not for"));
  EXPECT_THAT(Refused(""), HasSubstr("no certificate"));
  EXPECT_THAT(Refused("damaged"), HasSubstr("no certificate"));
}

TEST_F(CertificatesTest, AWrongClockIsNamed) {
  const std::string early = Refused(Chain(authority_, kCoordinator, kNow + 10, kNow + 86'400));
  EXPECT_THAT(early, HasSubstr("clock skew"));
  EXPECT_THAT(early, HasSubstr("2027-01-15T08:00:10"));  // both clocks
  EXPECT_THAT(early, HasSubstr("2027-01-15T08:00:00"));
  const std::string late = Refused(Chain(authority_, kCoordinator, kNow - 900, kNow - 1));
  EXPECT_THAT(late, HasSubstr("ended at"));
}

TEST_F(CertificatesTest, RequestsProveTheirKey) {
  const auto key = *PrivateKey::Generate();
  const auto request = *Request::Make(key);
  EXPECT_EQ(Request::FromPem(request.ToPem())->Hash(), key.Hash());
  EXPECT_EQ(PrivateKey::FromPem(key.ToPem())->Hash(), key.Hash());
  EXPECT_THAT(request.ToPem(), Not(HasSubstr("PRIVATE")));
  std::string damaged = request.ToPem();
  char& byte = damaged[damaged.size() - 60];  // within the signature
  byte = byte == 'A' ? 'B' : 'A';
  EXPECT_EQ(Request::FromPem(damaged).error().code(), ErrorCode::kInvalidArgument);
  EXPECT_FALSE(Request::FromPem(std::string(1 << 20, 'x')));
}

TEST_F(CertificatesTest, AnAuthorityIsFoundInABundleByItsKey) {
  const Authority second = *Authority::Create("test", kNow);
  const std::string bundle = authority_.certificate().ToPem() + second.certificate().ToPem();
  EXPECT_EQ(Authority::Load(bundle, second.key().ToPem())->certificate().Hash(),
            second.certificate().Hash());
  EXPECT_FALSE(Authority::Load(authority_.certificate().ToPem(), second.key().ToPem()));
}

TEST_F(CertificatesTest, HostsAreChecked) {
  const auto key = *PrivateKey::Generate();
  for (const char* bad : {"a b", "*.example", "a/b", "", "x,DNS:other"}) {
    EXPECT_FALSE(authority_.Sign(key.get(), {kCoordinator, {bad}, kNow, kNow + 1})) << bad;
  }
}

TEST_F(CertificatesTest, RenewalIsDueAfterTwoThirds) {
  const auto certificate = *Certificate::FromPem(Chain(authority_, kCoordinator));
  EXPECT_FALSE(DueForRenewal(certificate, kNow));
  EXPECT_FALSE(DueForRenewal(certificate, kNow + 57'599));
  EXPECT_TRUE(DueForRenewal(certificate, kNow + 57'600));
}

TEST(Enrollment, AHostWithANulIsNoAddress) {
  // OpenSSL reads the address 10.0.0.1, and the names behind it would be lost.
  const std::string host("10.0.0.1\0,URI:spiffe://c/operator/x", 34);
  EXPECT_EQ(ValidateHost("host", host).code(), ErrorCode::kInvalidArgument);
  EXPECT_FALSE(HostsOfNode("n1", {host}));
  const auto hosts = HostsOfNode("n1", {"10.0.0.1", "n1", "n1.example"});
  ASSERT_TRUE(hosts) << hosts.error().ToString();
  EXPECT_EQ(*hosts, (std::vector<std::string>{"n1", "10.0.0.1", "n1.example"}));
  EXPECT_TRUE(HostsOfNode("n1", std::vector<std::string>(8, "a")));
  EXPECT_FALSE(HostsOfNode("n1", std::vector<std::string>(9, "a"))) << "too many";
}

TEST(JoinTokenTest, TheLineHasAllPartsAndErrorsHaveNoSecret) {
  const auto token = *MakeJoinToken(std::string(64, 'a'));
  const auto again = *MakeJoinToken(std::string(64, 'a'));
  EXPECT_NE(token.id, again.id);
  EXPECT_NE(token.secret, again.secret);
  const auto parsed = *JoinToken::Parse(token.ToText());
  EXPECT_EQ(parsed.ca_hash, token.ca_hash);
  EXPECT_EQ(parsed.id, token.id);
  EXPECT_EQ(parsed.secret, token.secret);
  const std::string text = token.ToText();
  for (const std::string& bad :
       {text.substr(1), text + "0", text + ".0", text.substr(0, text.size() - 1), std::string(),
        std::string(1 << 16, '.'), "holdfast2" + text.substr(9)}) {
    const auto refused = JoinToken::Parse(bad);
    ASSERT_FALSE(refused);
    EXPECT_THAT(refused.error().message(), Not(HasSubstr(token.secret)));
  }
}

TEST(JoinTokenTest, SecretsAreHashedWithTheirId) {
  EXPECT_NE(HashSecret("1", "s"), HashSecret("2", "s"));
  EXPECT_TRUE(EqualSecrets("same", "same"));
  EXPECT_FALSE(EqualSecrets("same", "sama"));
  EXPECT_FALSE(EqualSecrets("same", "sam"));
}

TEST(RevokedNamesTest, CertificatesUpToTheRevocationAreRefused) {
  RevokedNames names;
  EXPECT_FALSE(names.Refuses("spiffe://test/agent/n1", 1));
  EXPECT_TRUE(names.Replace({{{"agent", "n1"}, 100}}));
  EXPECT_FALSE(names.Replace({{{"agent", "n1"}, 100}})) << "no change";
  EXPECT_TRUE(names.Refuses("spiffe://test/agent/n1", 99));
  EXPECT_TRUE(names.Refuses("spiffe://test/agent/n1", 100));
  EXPECT_FALSE(names.Refuses("spiffe://test/agent/n1", 101));
  EXPECT_FALSE(names.Refuses("spiffe://test/agent/n11", 1));
  EXPECT_FALSE(names.Refuses("spiffe://test/operator/n1", 1));
  for (const char* other : {"", "spiffe://", "spiffe://test", "spiffe://test/agent", "n1"}) {
    EXPECT_FALSE(names.Refuses(other, 1)) << other;
  }
}

class FilesTest : public ::testing::Test {
 protected:
  FilesTest() {
    std::string pattern = std::filesystem::temp_directory_path() / "holdfast-cert-XXXXXX";
    path_ = ::mkdtemp(pattern.data());
  }
  ~FilesTest() override { std::filesystem::remove_all(path_); }
  std::string path_;
};

TEST_F(FilesTest, AFileIsReplacedWithItsMode) {
  const std::string file = path_ + "/key";
  const mode_t before = ::umask(0);
  EXPECT_TRUE(ReplaceFile(file, "one", 0600).ok());
  EXPECT_TRUE(ReplaceFile(file, "two", 0600).ok());
  ::umask(before);
  struct stat info {};
  ASSERT_EQ(::stat(file.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600U);
  EXPECT_EQ(*ReadSmallFile(file), "two");
  EXPECT_FALSE(ReplaceFile(path_ + "/none/key", "x", 0600).ok());
  // Nothing is left of the attempts.
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(path_), {}), 1);
}

TEST_F(FilesTest, OneFileGetsANewKeyAndTwoFilesKeepTheirs) {
  const auto authority = *Authority::Create("test", kNow);
  const auto first = *PrivateKey::Generate();
  const std::string one = path_ + "/one";
  ASSERT_TRUE(ReplaceFile(one, first.ToPem(), 0600).ok());
  EXPECT_NE(NextKey({one, one})->Hash(), first.Hash());
  EXPECT_EQ(NextKey({path_ + "/cert", one})->Hash(), first.Hash());
  const auto next = *NextKey({one, one});
  const auto made = *authority.Sign(next.get(), {"spiffe://test/agent/n", {"n"}, kNow, kNow + 100});
  ASSERT_TRUE(InstallIdentity({one, one}, made.ToPem(), next).ok());
  EXPECT_EQ(ReadIdentity({one, one})->Hash(), PrivateKey::FromPem(*ReadSmallFile(one))->Hash());
}

}  // namespace
}  // namespace holdfast::certificates
