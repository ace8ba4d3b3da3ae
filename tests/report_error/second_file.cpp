// The header in a second file of the same program: everything in it is inline.
#include <ddprun/report_error.h>

bool report_from_elsewhere() { return ddprun::report_error("from elsewhere"); }
