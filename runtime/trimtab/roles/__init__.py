"""The processes of a job: coordinator, actor, rollout and reward, and the agent that starts them in a pod."""
