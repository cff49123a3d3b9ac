/** Rules for own-rules.test.ts, as a user writes them. */
export const rules = {
  /** Sign momentum. */
  lion: {
    slots: ['momentum'],
    check({ beta = 0.9 }) {
      if (!(beta >= 0 && beta < 1)) throw new Error(`beta is ${beta}; give 0 to below 1`);
    },
    update({ parameter, gradient, slots: { momentum }, rate, options: { beta = 0.9 } }) {
      for (let i = 0; i < parameter.length; i++) {
        momentum[i] = beta * momentum[i] + (1 - beta) * gradient[i];
        parameter[i] -= rate * Math.sign(momentum[i]);
      }
    },
  },
  plain: {
    movesWithoutGradient: false,
    update({ parameter, gradient, rate }) {
      for (let i = 0; i < parameter.length; i++) parameter[i] -= rate * gradient[i];
    },
  },
  throws: {
    update({ parameter, step }) {
      parameter.fill(7);
      if (step > 1) throw new Error('no idea what to do');
    },
  },
  divides: {
    update({ parameter, step }) {
      parameter.fill(step > 1 ? 1 / 0 : 1);
    },
  },
  loops: {
    update({ step }) {
      while (step > 1);
    },
  },
  waits: {
    async update() {},
  },
};
