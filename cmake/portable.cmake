# What a small ddprun is compiled with. -Os would save 0.25 MB of 1.4, link-time optimisation 0.05; neither starts sooner.

if(DDPRUN_WORKER OR DDPRUN_TESTS OR DDPRUN_SANITIZE)
  message(FATAL_ERROR "DDPRUN_PORTABLE builds ddprun alone: expected DDPRUN_WORKER and DDPRUN_TESTS OFF, no DDPRUN_SANITIZE")
endif()
target_compile_options(ddprun_options INTERFACE -O2 -ffunction-sections -fdata-sections)
target_link_options(ddprun_options INTERFACE -s)
