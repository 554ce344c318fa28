/* geom.h - checks of a geometry, shared by those who take one from a caller */
#ifndef KVATTN_GEOM_H
#define KVATTN_GEOM_H

#include <kvattn.h>

/** geom_check() - Return: 0; -EINVAL a field is out of range; -ENOTSUP type or layout is not served */
int geom_check(const struct kvattn_geom *geom);

#endif
