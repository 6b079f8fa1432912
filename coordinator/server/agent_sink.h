#pragma once

#include <memory>

#include "coordinator/api/directive_stream.h"
#include "coordinator/server/applier.h"

namespace holdfast::coord {

/// Converts a directive. A Welcome has only the epoch and the life.
coordinator::Directive ToWire(Epoch epoch, const Directive& directive);

/// Sends directives to an agent on its own stream.
class AgentSink : public DirectiveSink {
 public:
  explicit AgentSink(std::shared_ptr<DirectiveStream> stream) : stream_(std::move(stream)) {}
  void Push(Epoch epoch, const Directive& directive) override {
    stream_->Push(ToWire(epoch, directive));
  }
  void Close(const Status& why) override { stream_->Close(why); }

 private:
  const std::shared_ptr<DirectiveStream> stream_;
};

}  // namespace holdfast::coord
