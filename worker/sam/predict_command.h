#pragma once

namespace ddprun::sam {

/// `worker sam --predict IMAGE --point X,Y ... --checkpoint DIR --mask-out FILE`: predicts the mask of the
/// object at the points and writes it as a picture.
///
/// argv     argv[0] is the task's name
/// returns  the exit code
/// throws   UsageError, IoError
int run_predict_command(int argc, char** argv);

/// Whether the arguments request a prediction.
bool wants_prediction(int argc, char** argv);

}  // namespace ddprun::sam
