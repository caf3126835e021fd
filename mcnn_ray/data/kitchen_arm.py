"""The kitchen's arm: where its fingertips are, which joint angles bring them to a pose, and which action moves there.

Shapes: seven joint angles q_7, nine actuators (the joints, then two fingers). Lengths in metres, angles in radians.
"""

from __future__ import annotations

from typing import Any

import mujoco
import numpy as np
import numpy.typing as npt
from scipy.spatial.transform import Rotation

__all__ = ["POSTURE_7", "Arm", "Pose", "pointing"]

Array = npt.NDArray[np.float64]
Pose = tuple[Array, Array]  # position and axes of the fingertips in the world, as `Arm.pose` gives them

_HAND = "panda0_link7"
_TIP = np.array([0.0, 0.0, 0.255])  # between the fingertips, in the hand's frame
_FINGERS_RAD = -np.pi / 4  # about the hand's z axis, to where the fingers open along y
_MARGIN_RAD = 0.02  # to the joints' limits
POSTURE_7 = np.array([-0.5, -1.0, 1.4, -2.1, 0.0, 1.3, 1.0])  # elbow to the right, amid the joints' limits
_DAMPING = 0.02
_POSTURE_GAIN = 0.03
# Half of what is asked for is moved within a step: the servos' time constants are damping / kp = 0.115 s for the first
# four joints and 0.083 s for the wrist, a step takes 0.08 s.
_REACHED_IN_A_STEP = np.array([0.48, 0.48, 0.48, 0.48, 0.6, 0.6, 0.6])
_METRES_PER_STEP = 0.045
_RADIANS_PER_STEP = 0.12


class Arm:
    """Reads the simulator's state, and never writes it.

    Args:
        robot: the `robot_env` of a FrankaKitchen environment.
    """

    def __init__(self, robot: Any) -> None:
        self._robot = robot
        self._model, self._data = robot.model, robot.data
        self._scratch = mujoco.MjData(self._model)
        self._hand = self._model.body(_HAND).id
        self._fingers = Rotation.from_rotvec([0.0, 0.0, _FINGERS_RAD]).as_matrix()
        joints, targets = self._model.jnt_range[:7], robot.robot_pos_bound[:7]
        self.lower_7: Array = np.maximum(joints[:, 0], targets[:, 0]) + _MARGIN_RAD
        self.upper_7: Array = np.minimum(joints[:, 1], targets[:, 1]) - _MARGIN_RAD

    @property
    def angles_7(self) -> Array:
        """The joints' angles now."""
        return np.array(self._data.qpos[:7])

    def pose(self, q_7: Array) -> Pose:
        """Return where the fingertips are at some joint angles.

        Returns:
            Position (3,) and axes (3, 3) in the world; the columns are the hand's thickness, the direction in which the
            fingers open, and the one in which they point.
        """
        self._scratch.qpos[:7] = q_7
        mujoco.mj_kinematics(self._model, self._scratch)
        axes = self._scratch.xmat[self._hand].reshape(3, 3)
        return self._scratch.xpos[self._hand] + axes @ _TIP, axes @ self._fingers

    def solve(self, q_7: Array, pose: Pose, iterations: int = 30) -> Array:
        """Return joint angles that bring the fingertips to a pose: damped least squares, within the joints' limits.

        Args:
            q_7: where to start.
            pose: to reach.
            iterations: fewer come less near.
        """
        position, axes = pose
        q_7 = np.clip(q_7, self.lower_7, self.upper_7)
        jacobian = np.zeros((6, self._model.nv))
        for _ in range(iterations):
            tip, now = self.pose(q_7)
            error = np.concatenate([position - tip, _rotation_vector(axes @ now.T)])
            mujoco.mj_comPos(self._model, self._scratch)
            mujoco.mj_jac(self._model, self._scratch, jacobian[:3], jacobian[3:], tip, self._hand)
            J = jacobian[:, :7]
            inverse = J.T @ np.linalg.inv(J @ J.T + _DAMPING**2 * np.eye(6))
            rest = _POSTURE_GAIN * (POSTURE_7 - q_7)
            q_7 = q_7 + inverse @ error + rest - inverse @ (J @ rest)
            q_7 = np.clip(q_7, self.lower_7, self.upper_7)
        return q_7

    def towards(self, pose: Pose, grip: bool, speed: float = 1.0) -> Array:
        """Return the action that moves the fingertips a step towards a pose.

        Args:
            pose: to go to.
            grip: whether the fingers close.
            speed: over that of free motion; against what resists it is the force that grows.

        Returns:
            (9,) in [-1, 1].
        """
        position, axes = pose
        q_7 = self.angles_7
        tip, now = self.pose(q_7)
        way = _limited(position - tip, speed * _METRES_PER_STEP)
        turn = _limited(_rotation_vector(axes @ now.T), _RADIANS_PER_STEP)
        step = self.solve(q_7, (tip + way, Rotation.from_rotvec(turn).as_matrix() @ now), iterations=3) - q_7
        # The environment aims at (angle + velocity * dt); without the weight's share the arm would sink.
        weight = self._data.qfrc_bias[:7] / self._model.actuator_gainprm[:7, 0]
        velocity = (step / _REACHED_IN_A_STEP + weight) / self._robot.dt / self._robot.act_rng[:7]
        action: Array = np.clip(np.concatenate([velocity, np.full(2, -1.0 if grip else 1.0)]), -1.0, 1.0)
        return action


def pointing(yaw: float, pitch: float) -> Array:
    """Return the axes (3, 3) of fingers that point straight into the kitchen and open sideways, then turned.

    Args:
        yaw: to the left.
        pitch: downwards.
    """
    straight = np.array([[0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [1.0, 0.0, 0.0]])
    return np.asarray(Rotation.from_euler("xz", [-pitch, yaw]).as_matrix() @ straight)


def _rotation_vector(axes: Array) -> Array:
    return np.asarray(Rotation.from_matrix(axes).as_rotvec())


def _limited(vector: Array, longest: float) -> Array:
    return vector * min(1.0, longest / (float(np.linalg.norm(vector)) + 1e-9))
