export type { Exchange } from './exchange.ts';
export { agree, tellAll } from './agreement.ts';
export { CollectiveExchange } from './collective-exchange.ts';
export type { CollectiveExchangeOptions } from './collective-exchange.ts';
export { measureMessages } from './message-costs.ts';
export type { MeasuredMessages, MessageCosts } from './message-costs.ts';
