/* What other objects may see of this library: the functions that stand in front of others, and nothing else. */
#ifndef SLUICE_QUOTA_EXPORTED_H
#define SLUICE_QUOTA_EXPORTED_H

#define EXPORTED __attribute__((visibility("default")))

#endif
