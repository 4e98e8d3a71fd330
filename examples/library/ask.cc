// SPDX-License-Identifier: Apache-2.0
//
// usage: ask MODEL QUESTION...
// Asks all questions at the same time and prints each answer as it ends. Ctrl-C is the program's
// own business: the library installs no signal handler.
#include <future>
#include <iostream>
#include <mutex>
#include <vector>

#include "signalbox/server/signalbox.h"

int main(int argc, char** argv) {
  if (argc < 3) {
    std::cerr << "usage: ask MODEL QUESTION...\n";
    return 2;
  }
  auto model = signalbox::Model::Load(argv[1], {.threads = 2});
  if (!model.ok()) {
    std::cerr << model.status().ToString() << "\n";
    return 1;
  }
  std::mutex printing;
  std::vector<std::future<bool>> answers;
  for (int i = 2; i < argc; ++i) {
    auto done = std::make_shared<std::promise<bool>>();
    answers.push_back(done->get_future());
    const std::string question = argv[i];
    const auto id = (*model)->Stream(
        {.messages = {{"user", question}}, .max_new_tokens = 400}, [](std::string_view) {},
        [&, question, done](const signalbox::Result<signalbox::Completion>& answer) {
          const std::lock_guard lock(printing);
          if (answer.ok()) {
            std::cout << question << "\n  " << answer->content << "\n  (" << answer->new_tokens
                      << " tokens, ended by " << answer->finish << ")\n";
          } else {
            std::cerr << answer.status().ToString() << "\n";
          }
          done->set_value(answer.ok());
        });
    if (!id.ok()) {
      std::cerr << id.status().ToString() << "\n";
      return 1;
    }
  }
  bool good = true;
  for (auto& answer : answers) good &= answer.get();
  const signalbox::ModelStats stats = (*model)->stats();
  std::cout << stats.finished << " answers, " << stats.new_tokens << " tokens, signalbox "
            << signalbox::Version() << "\n";
  return good ? 0 : 1;
}
