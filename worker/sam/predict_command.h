#pragma once

namespace ddprun::worker {

/// `worker sam --predict IMAGE --point X,Y ... --checkpoint DIR --mask-out FILE`: what a model takes the
/// points of an image to mean, as a picture. argv[0] is the task's name. returns  the exit code; throws
/// UsageError, IoError
int run_predict_command(int argc, char** argv);

/// Whether the words after the task's name ask for that.
bool wants_prediction(int argc, char** argv);

}  // namespace ddprun::worker
