"""Q-learning: after each episode one fit on a random sample of a memory, and a second network that follows later."""

import random
from collections import deque

import keras
import numpy as np
from keras import layers

from keras_preempt import PreemptionCallback

keras.utils.set_random_seed(81)

EPISODES, STEPS, SAMPLE, DISCOUNT = 5, 12, 24, 0.9


def build():
    model = keras.Sequential([keras.Input((2,)), layers.Dense(16, activation="relu"), layers.Dense(2)])
    model.compile(optimizer=keras.optimizers.Adam(0.01), loss="huber")
    return model


def step(state, action):
    """A cart on a line, pushed to the left or to the right; the closer to the middle it is, the better."""
    position, speed = state
    speed = 0.9 * speed + (0.2 if action else -0.2) + np.random.normal(scale=0.02)
    return np.array([position + speed, speed]), -abs(position + speed)


memory = deque(maxlen=40)
network, target = build(), build()
target.set_weights(network.get_weights())
exploration = 1.0

for episode in range(EPISODES):
    state = np.random.uniform(-1, 1, size=2)
    for _ in range(STEPS):
        if random.random() < exploration:
            action = random.randrange(2)
        else:
            action = int(np.argmax(network.predict(state[np.newaxis], verbose=0)))
        following, reward = step(state, action)
        memory.append((state, action, reward, following))
        state = following
    exploration *= 0.7

    sample = random.sample(memory, min(SAMPLE, len(memory)))
    states, actions, rewards, followings = (np.array(part) for part in zip(*sample, strict=True))
    values = network.predict(states, verbose=0)
    best = target.predict(followings, verbose=0).max(axis=1)
    values[np.arange(len(values)), actions] = rewards + DISCOUNT * best
    network.fit(states, values, batch_size=4, epochs=2, callbacks=[PreemptionCallback("runs/q")])
    if episode % 2:
        target.set_weights(network.get_weights())
