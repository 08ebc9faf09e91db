"""Knowledge distillation: a teacher, a student by a compute_loss of its own, and the student from scratch."""

import keras
import numpy as np
from keras import layers, ops

from keras_preempt import PreemptionCallback

keras.utils.set_random_seed(17)

y = np.random.randint(0, 5, size=480)
x = np.random.normal(size=(480, 10, 10, 1)).astype("float32")
x[np.arange(480), 2 * y] += 1.5
x_train, y_train, x_test, y_test = x[:384], y[:384], x[384:], y[384:]


class Distiller(keras.Model):
    def __init__(self, student, teacher):
        super().__init__()
        self.teacher = teacher
        self.student = student

    def compile(self, optimizer, metrics, student_loss_fn, distillation_loss_fn, alpha=0.1, temperature=3):
        super().compile(optimizer=optimizer, metrics=metrics)
        self.student_loss_fn = student_loss_fn
        self.distillation_loss_fn = distillation_loss_fn
        self.alpha = alpha
        self.temperature = temperature

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, allow_empty=False, training=True):
        teacher_pred = self.teacher(x, training=False)
        student_loss = self.student_loss_fn(y, y_pred)
        distillation_loss = self.distillation_loss_fn(
            ops.softmax(teacher_pred / self.temperature, axis=1),
            ops.softmax(y_pred / self.temperature, axis=1),
        ) * (self.temperature**2)
        return self.alpha * student_loss + (1 - self.alpha) * distillation_loss

    def call(self, x):
        return self.student(x)


def make_model(name, filters):
    return keras.Sequential(
        [
            keras.Input(shape=(10, 10, 1)),
            layers.Conv2D(filters, (3, 3), strides=(2, 2), padding="same"),
            layers.LeakyReLU(negative_slope=0.2),
            layers.Conv2D(2 * filters, (3, 3), strides=(2, 2), padding="same"),
            layers.Flatten(),
            layers.Dense(5),
        ],
        name=name,
    )


teacher = make_model("teacher", 16)
student = make_model("student", 4)
# Clone student for later comparison
student_scratch = keras.models.clone_model(student)

cross_entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
teacher.compile(
    optimizer=keras.optimizers.Adam(),
    loss=cross_entropy,
    metrics=[keras.metrics.SparseCategoricalAccuracy()],
)
# One place for the checkpoints of all three fits.
preemption = PreemptionCallback("runs/distillation")
teacher.fit(x_train, y_train, epochs=2, callbacks=[preemption])
teacher.evaluate(x_test, y_test)

distiller = Distiller(student=student, teacher=teacher)
distiller.compile(
    optimizer=keras.optimizers.Adam(),
    metrics=[keras.metrics.SparseCategoricalAccuracy()],
    student_loss_fn=cross_entropy,
    distillation_loss_fn=keras.losses.KLDivergence(),
    alpha=0.1,
    temperature=10,
)
distiller.fit(x_train, y_train, epochs=2, validation_data=(x_test, y_test), callbacks=[preemption])
distiller.evaluate(x_test, y_test)

student_scratch.compile(
    optimizer=keras.optimizers.Adam(),
    loss=cross_entropy,
    metrics=[keras.metrics.SparseCategoricalAccuracy()],
)
student_scratch.fit(x_train, y_train, epochs=2, callbacks=[preemption])
student_scratch.evaluate(x_test, y_test)
