"""Sequence to sequence: adding numbers written as strings, by a loop of fits with samples shown in between."""

import keras
import numpy as np
from keras import layers

from keras_preempt import PreemptionCallback

keras.utils.set_random_seed(10)

TRAINING_SIZE, DIGITS, REVERSE = 400, 2, True
MAXLEN = DIGITS + 1 + DIGITS


class CharacterTable:
    """Encode strings as one-hot arrays, and decode them."""

    def __init__(self, chars):
        self.chars = sorted(set(chars))
        self.char_indices = {c: i for i, c in enumerate(self.chars)}
        self.indices_char = dict(enumerate(self.chars))

    def encode(self, C, num_rows):
        x = np.zeros((num_rows, len(self.chars)))
        for i, c in enumerate(C):
            x[i, self.char_indices[c]] = 1
        return x

    def decode(self, x, calc_argmax=True):
        if calc_argmax:
            x = x.argmax(axis=-1)
        return "".join(self.indices_char[i] for i in x)


ctable = CharacterTable("0123456789+ ")
questions, expected = [], []
while len(questions) < TRAINING_SIZE:
    a, b = np.random.randint(0, 100, size=2)
    query = f"{a}+{b}".ljust(MAXLEN)
    questions.append(query[::-1] if REVERSE else query)
    expected.append(str(a + b).ljust(DIGITS + 1))
x = np.stack([ctable.encode(sentence, MAXLEN) for sentence in questions])
y = np.stack([ctable.encode(sentence, DIGITS + 1) for sentence in expected])

# Shuffle (x, y) in unison as the later parts of x will almost all be larger digits.
indices = np.arange(len(y))
np.random.shuffle(indices)
x, y = x[indices], y[indices]
split_at = len(x) - len(x) // 10
x_train, x_val, y_train, y_val = x[:split_at], x[split_at:], y[:split_at], y[split_at:]

model = keras.Sequential()
model.add(layers.Input((MAXLEN, len(ctable.chars))))
model.add(layers.LSTM(16))
model.add(layers.RepeatVector(DIGITS + 1))
model.add(layers.LSTM(16, return_sequences=True))
model.add(layers.Dense(len(ctable.chars), activation="softmax"))
model.compile(loss="categorical_crossentropy", optimizer="adam", metrics=["accuracy"])

epochs, batch_size = 4, 32
preemption = PreemptionCallback("runs/addition")
# Train the model each generation and show predictions against the validation dataset.
for epoch in range(1, epochs + 1):
    print("\nIteration", epoch)
    model.fit(
        x_train,
        y_train,
        batch_size=batch_size,
        epochs=1,
        validation_data=(x_val, y_val),
        callbacks=[preemption],
    )
    # Select samples from the validation set at random so we can visualize errors.
    for _ in range(3):
        ind = np.random.randint(0, len(x_val))
        rowx, rowy = x_val[np.array([ind])], y_val[np.array([ind])]
        preds = np.argmax(model.predict(rowx, verbose=0), axis=-1)
        q, correct, guess = ctable.decode(rowx[0]), ctable.decode(rowy[0]), ctable.decode(preds[0], False)
        print("Q", q[::-1] if REVERSE else q, "T", correct, "☑" if correct == guess else "☒", guess)
