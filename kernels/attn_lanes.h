/*
 * attn_lanes.h - what vectors of any length do alike; included by each attn_<isa>.c, which defines LANES, vec and VEC
 */
typedef float vec_near __attribute__((vector_size(LANES * sizeof(float)), may_alias, aligned(4)));

VEC vec vec_zero(void)
{
	return (vec){0};
}

VEC vec vec_load(const float *p)
{
	return (vec) * (const vec_near *)(const void *)p;
}

VEC void vec_store(float *p, vec v)
{
	*(vec_near *)(void *)p = (vec_near)v;
}

VEC vec vec_add(vec a, vec b)
{
	return a + b;
}

VEC vec vec_sub(vec a, vec b)
{
	return a - b;
}

VEC vec vec_mul(vec a, vec b)
{
	return a * b;
}

VEC vec vec_div(vec a, vec b)
{
	return a / b;
}
