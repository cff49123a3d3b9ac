/** Secrets for tests, strong enough to be accepted. Not secret at all, so good for nothing else. */

export const SECRET = '0f1e2d3c4b5a69788796a5b4c3d2e1f0';
export const OTHER_SECRET = '00112233445566778899aabbccddeeff';
