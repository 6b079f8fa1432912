#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <tuple>
#include <vector>

namespace holdfast::local {

/// A virtual network: one switch, and a network namespace for each place. The destructor removes
/// it.
class Lan {
 public:
  explicit Lan(int places) : name_(fmt::format("hf{}", ::getpid())), places_(places) {}
  ~Lan() {
    for (int i = 0; i < places_; ++i) std::ignore = Ip("netns del " + Namespace(i));
    std::ignore = Ip("netns del " + name_);
  }
  Lan(const Lan&) = delete;
  Lan& operator=(const Lan&) = delete;

  /// Creates the network. Returns false if this process has no permission.
  bool Make() {
    if (!Ip("netns add " + name_)) return false;
    bool made = Ip(fmt::format("-n {} link add lan type bridge", name_)) &&
                Ip(fmt::format("-n {} link set lan up", name_));
    for (int i = 0; made && i < places_; ++i) {
      const std::string node = Namespace(i);
      made = Ip("netns add " + node) &&
             Ip(fmt::format("-n {} link add port{} type veth peer name eth0 netns {}", name_, i,
                            node)) &&
             Ip(fmt::format("-n {} link set port{} master lan up", name_, i)) &&
             Ip(fmt::format("-n {} addr add {}/24 dev eth0", node, Address(i))) &&
             Ip(fmt::format("-n {} link set eth0 up", node)) &&
             Ip(fmt::format("-n {} link set lo up", node));
    }
    return made;
  }
  /// The command prefix that runs a program in the namespace of a place.
  std::vector<std::string> CommandAt(int place) const {
    return {"/usr/bin/env", "ip", "netns", "exec", Namespace(place)};
  }
  std::string Namespace(int place) const { return fmt::format("{}n{}", name_, place); }
  static std::string Address(int place) { return fmt::format("10.77.0.{}", place + 1); }
  /// Connects or disconnects the place at the switch.
  void SetCable(int place, bool plugged) {
    ASSERT_TRUE(Ip(fmt::format("-n {} link set port{} {}", name_, place, plugged ? "up" : "down")));
  }

 private:
  static bool Ip(const std::string& arguments) {
    return std::system(("ip " + arguments + " 2>/dev/null").c_str()) == 0;
  }

  const std::string name_;
  const int places_;
};

}  // namespace holdfast::local
