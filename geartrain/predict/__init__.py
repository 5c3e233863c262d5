"""What a step of a training run will take: by closed form in milliseconds, or simulated on shapes."""
