#include <holdfast/holdfast.hpp>

int main() {
  std::vector<float> weights(4);
  holdfast::Options options{.job = "consumer"};
  options.connect_timeout = std::chrono::milliseconds(50);
  std::vector<holdfast::Tensor> state = {holdfast::Whole("w", weights, {4})};
  auto client = holdfast::Client::Open(options, state);
  if (client.ok() || client.status().code() != holdfast::Code::kUnavailable) return 1;
  options.start_offline = true;
  client = holdfast::Client::Open(options, state);
  if (!client.ok()) return 2;
  if (client->Save(1, {{"rng", "1"}}).code() != holdfast::Code::kUnavailable) return 3;
  if (client->Restore({}, std::chrono::milliseconds(50)).ok()) return 4;
  return client->Close().ok() ? 0 : 5;
}
