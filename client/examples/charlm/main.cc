// holdfast-charlm: the example trainer. Start reading in trainer.cc.

#include "charlm/options.h"
#include "charlm/trainer.h"

int main(int argc, char** argv) {
  charlm::Options options;
  if (auto code = charlm::ParseOptions(argc, argv, &options)) return *code;
  return charlm::Trainer(options).Run();
}
