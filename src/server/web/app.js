import {startChat} from './chat.js';
import {startLive} from './live.js';

startChat();
startLive();
